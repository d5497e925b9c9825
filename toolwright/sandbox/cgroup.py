"""Control groups, where they are to be had: a ceiling over all runs of a worker together.

Limits of processes are counted for each alone; a group's hold for whatever they do together, and when memory
runs out inside it, it is one of them that is killed and nobody else. One group serves a worker for life:
making one for each run costs more than the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def _own_paths() -> dict[str, str]:
    """Controller to path of this process; the empty name is version 2."""
    paths = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path.lstrip("/")
    return paths


class Group:
    """The group of one worker, in whichever version has the two controllers."""

    def __init__(self, name: str, root: Path = _ROOT) -> None:
        self.name = name
        own = _own_paths()
        self._second = (root / "cgroup.controllers").exists()
        if self._second:
            self._folders = {"memory": root / own.get("", "") / name}
            self._folders["pids"] = self._folders["memory"]
        else:
            self._folders = {kind: root / kind / own.get(kind, "") / name for kind in ("memory", "pids")}

    def make(self, *, memory_bytes: int, processes: int) -> bool:
        """Whether the kernel and the machine's owner let us."""
        try:
            if self._second:
                _pass_on(self._folders["memory"].parent)
            for folder in self._folders.values():
                folder.mkdir(exist_ok=True)
            limit = "memory.max" if self._second else "memory.limit_in_bytes"
            (self._folders["memory"] / limit).write_text(str(memory_bytes))
            (self._folders["pids"] / "pids.max").write_text(str(processes))
        except OSError:
            self.remove()
            return False
        no_swap, nothing = ("memory.swap.max", 0) if self._second else ("memory.swappiness", 0)
        with contextlib.suppress(OSError):  # a machine without swap has no such file
            (self._folders["memory"] / no_swap).write_text(str(nothing))
        return True

    def add(self, pid: int) -> None:
        for folder in {*self._folders.values()}:
            (folder / "cgroup.procs").write_text(str(pid))

    def out_of_memory(self) -> int:
        """How often something in it was killed for want of memory."""
        name = "memory.events" if self._second else "memory.oom_control"
        with contextlib.suppress(OSError, ValueError):
            for line in (self._folders["memory"] / name).read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Ends whatever is still in it, which without a pid namespace may be something, and takes it away."""
        for folder in {*self._folders.values()}:
            with contextlib.suppress(OSError, ValueError):
                for pid in (folder / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            for _ in range(50):
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.01)
                    continue
                break


def _pass_on(parent: Path) -> None:
    """Version 2 gives a child only what its parent passes on; asking again for what it has may be refused."""
    control = parent / "cgroup.subtree_control"
    lacking = {"memory", "pids"} - set(control.read_text().split())
    if lacking:
        control.write_text(" ".join(f"+{name}" for name in sorted(lacking)))


def available() -> bool:
    """Found out by making one."""
    group = Group(f"toolwright-probe-{os.getpid()}")
    made = group.make(memory_bytes=1 << 30, processes=100)
    group.remove()
    return made


def share_of_memory(workers: int) -> int:
    """What a worker's runs may use together: four fifths of the machine, divided."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total * 0.8) // max(1, workers)
