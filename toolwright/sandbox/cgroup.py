"""Control groups, if available: a memory limit for each run, and one for all runs of a worker.

Rlimits count each process alone. The limit of a group holds for all its processes together, including the
kernel's memory, and if memory runs out inside it, the kernel kills one of them and nobody else. One run after
another uses a group: creating one for each would cost more than the run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_ZYGOTES = "zygotes"
# On top of the run's own limit: the pages of the zygote that its first process writes to, and what the kernel
# holds for any process.
_ALLOWANCE_BYTES = 32 << 20


def own_paths() -> dict[str, str]:
    """The path of this process by controller; the empty name is version 2."""
    paths = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for controller in controllers.split(","):
                paths[controller] = path.lstrip("/")
    return paths


class ControlGroup:
    """The group of one worker, in version 1 or 2."""

    def __init__(self, name: str, root: Path = _ROOT) -> None:
        self.name = name
        self._free: list[RunGroup] = []
        self._created = 0
        own = own_paths()
        self._v2 = (root / "cgroup.controllers").exists()
        if self._v2:
            self._folders = {"memory": root / own.get("", "") / name}
            self._folders["pids"] = self._folders["memory"]
        else:
            self._folders = {kind: root / kind / own.get(kind, "") / name for kind in ("memory", "pids")}

    def make(self, *, memory_bytes: int, processes: int) -> bool:
        """Creates the group. False if the kernel or the machine's owner does not allow it."""
        try:
            if self._v2:
                _delegate(self._folders["memory"].parent)
            for folder in self._folders.values():
                folder.mkdir(exist_ok=True)
            limit = "memory.max" if self._v2 else "memory.limit_in_bytes"
            (self._folders["memory"] / limit).write_text(str(memory_bytes))
            (self._folders["pids"] / "pids.max").write_text(str(processes))
            if self._v2:
                _delegate(self._folders["memory"])
                (self._folders["memory"] / _ZYGOTES).mkdir(exist_ok=True)
        except OSError:
            self.remove()
            return False
        swap = "memory.swap.max" if self._v2 else "memory.swappiness"
        with contextlib.suppress(OSError):  # a machine without swap has no such file
            (self._folders["memory"] / swap).write_text("0")
        return True

    def add(self, pid: int) -> None:
        """Adds a zygote. In version 2 only leaves have processes."""
        for folder in {*self._folders.values()}:
            leaf = folder / _ZYGOTES if self._v2 else folder
            (leaf / "cgroup.procs").write_text(str(pid))

    def acquire(self) -> RunGroup:
        """A group for a run: one that an earlier run had, or a new one."""
        if self._free:
            return self._free.pop()
        self._created += 1
        return RunGroup(self._folders["memory"] / f"run-{self._created}", self._v2)

    def release(self, group: RunGroup) -> None:
        self._free.append(group)

    def remove(self) -> None:
        """Removes the group. Ends processes in it: without a pid namespace there may be some."""
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
    """The group of one run after another. The first process of a run joins it before it reads its job."""

    def __init__(self, folder: Path, v2: bool) -> None:
        self._v2 = v2
        self._folder = folder
        folder.mkdir(exist_ok=True)
        self.procs = os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        events = "memory.events.local" if v2 else "memory.oom_control"
        self._events = os.open(folder / events, os.O_RDONLY | os.O_CLOEXEC)
        self._limit = 0
        self._kills = self._oom_kills()

    def set_limit(self, memory_bytes: int) -> None:
        """Sets the limit of the next run."""
        self._kills = self._oom_kills()
        limit_bytes = memory_bytes + _ALLOWANCE_BYTES
        if limit_bytes != self._limit:
            limit = "memory.max" if self._v2 else "memory.limit_in_bytes"
            (self._folder / limit).write_text(str(limit_bytes))
            self._limit = limit_bytes

    def has_killed(self) -> bool:
        """Return True if the kernel killed a process of the run because memory ran out."""
        return self._oom_kills() > self._kills

    def _oom_kills(self) -> int:
        for line in os.pread(self._events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0


def _delegate(parent: Path) -> None:
    """Delegates the controllers to children, which version 2 requires. Asks only for those still missing."""
    control = parent / "cgroup.subtree_control"
    lacking = {"memory", "pids"} - set(control.read_text().split())
    if lacking:
        control.write_text(" ".join(f"+{name}" for name in sorted(lacking)))


def available() -> bool:
    """Return True if we may create groups, found out by creating one."""
    group = ControlGroup(f"toolwright-probe-{os.getpid()}")
    made = group.make(memory_bytes=1 << 30, processes=100)
    group.remove()
    return made


def share_of_memory(workers: int) -> int:
    """The memory that all runs of a worker may use together: its share of four fifths of the machine."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(total * 0.8) // max(1, workers)
