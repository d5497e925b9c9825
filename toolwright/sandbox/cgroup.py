"""Control groups, where they are to be had: a ceiling over each run, and one over all runs of a worker.

Limits of processes are counted for each alone; a group's hold for whatever they do together, the kernel's own
memory included, and when memory runs out inside it, it is one of them that is killed and nobody else. A group
serves one run after another: making one for each costs more than the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_ZYGOTES = "zygotes"
# On top of what a run may use: the pages of the zygote that its first process writes to, and what the kernel
# holds for any process.
_ALLOWANCE_BYTES = 32 << 20


def _own_paths() -> dict[str, str]:
    """Controller to path of this process; the empty name is version 2."""
    paths = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path.lstrip("/")
    return paths


class ControlGroup:
    """The group of one worker, in whichever version has the two controllers."""

    def __init__(self, name: str, root: Path = _ROOT) -> None:
        self.name = name
        self._free: list[RunGroup] = []
        self._made = 0
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
            if self._second:
                _pass_on(self._folders["memory"])
                (self._folders["memory"] / _ZYGOTES).mkdir(exist_ok=True)
        except OSError:
            self.remove()
            return False
        no_swap, nothing = ("memory.swap.max", 0) if self._second else ("memory.swappiness", 0)
        with contextlib.suppress(OSError):  # a machine without swap has no such file
            (self._folders["memory"] / no_swap).write_text(str(nothing))
        return True

    def add(self, pid: int) -> None:
        """A zygote. In version 2 processes live in the leaves only."""
        for folder in {*self._folders.values()}:
            leaf = folder / _ZYGOTES if self._second else folder
            (leaf / "cgroup.procs").write_text(str(pid))

    def for_a_run(self) -> RunGroup:
        """The group of a run that ended, or another."""
        if self._free:
            return self._free.pop()
        self._made += 1
        return RunGroup(self._folders["memory"] / f"run-{self._made}", self._second)

    def take_back(self, group: RunGroup) -> None:
        self._free.append(group)

    def remove(self) -> None:
        """Ends whatever is still in it, which without a pid namespace may be something, and takes it away."""
        below = [folder for folder in self._folders["memory"].glob("*") if folder.is_dir()]
        for folder in (*below, *{*self._folders.values()}):
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


class RunGroup:
    """The group of one run after another. The run's first process joins it before it sees its job."""

    def __init__(self, folder: Path, second: bool) -> None:
        self._second = second
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.joining = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        events = "memory.events.local" if second else "memory.oom_control"
        self._events = os.open(folder / events, os.O_RDONLY | os.O_CLOEXEC)
        self._ceiling = 0
        self._kills = self._counted()

    def allow(self, memory_bytes: int) -> None:
        """Sets the ceiling of the run that comes."""
        self._kills = self._counted()
        ceiling = memory_bytes + _ALLOWANCE_BYTES
        if ceiling != self._ceiling:
            limit = "memory.max" if self._second else "memory.limit_in_bytes"
            (self._folder / limit).write_text(str(ceiling))
            self._ceiling = ceiling

    def has_killed(self) -> bool:
        """Whether a process of the run was killed for want of memory."""
        return self._counted() > self._kills

    def _counted(self) -> int:
        for line in os.pread(self._events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0


def _pass_on(parent: Path) -> None:
    """Version 2 gives a child only what its parent passes on; asking again for what it has may be refused."""
    control = parent / "cgroup.subtree_control"
    lacking = {"memory", "pids"} - set(control.read_text().split())
    if lacking:
        control.write_text(" ".join(f"+{name}" for name in sorted(lacking)))


def available() -> bool:
    """Found out by making one."""
    group = ControlGroup(f"toolwright-probe-{os.getpid()}")
    made = group.make(memory_bytes=1 << 30, processes=100)
    group.remove()
    return made


def share_of_memory(workers: int) -> int:
    """What a worker's runs may use together: four fifths of the machine, divided."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total * 0.8) // max(1, workers)
