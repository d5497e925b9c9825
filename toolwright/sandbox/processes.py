"""The processes of a run, read from outside: which they are, how much time and how much memory they use.

A run's own time is the processor time of all its processes together, plus the time in which all of them
slept. Waiting for a processor does not count: on a busy machine a run takes longer, and ends in the same way.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from toolwright.sandbox import view

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def host_pid(zygote: int, inside: int) -> int:
    """The host pid of a zygote's child whose pid in the zygote's namespace is `inside`; 0 if it is gone."""
    depth = len(_numbers_of(zygote))
    for pid in children(zygote):
        if _numbers_of(pid)[depth - 1 : depth] == [inside]:
            return pid
    return 0


def tree(pid: int) -> list[int]:
    """The first process of a run and its descendants, which always stay below it."""
    found = [pid]
    for parent in found:
        found += children(parent)
    return found


def children(pid: int) -> list[int]:
    """The children of a process. The kernel lists them by the thread that forked them."""
    lists = (read(f"/proc/{pid}/task/{thread}/children") for thread in _threads(pid))
    return [int(child) for listed in lists for child in listed.split()]


def times(pid: int) -> tuple[bool | None, float, float]:
    """Return whether a thread of the process runs or waits for a processor (None if the process has ended),
    and the processor time of the process and of the children that it has waited for."""
    # The name, in parentheses, may hold anything, parentheses and blanks too.
    fields = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(fields) < 18:
        return None, 0.0, 0.0
    runnable, threads = fields[0] == "R", fields[17]
    own, waited_for = ((int(fields[at]) + int(fields[at + 1])) / _TICKS_PER_S for at in (11, 13))
    if fields[0] == "Z" and threads in ("0", "1"):
        return None, own, waited_for
    if threads == "1":
        # A tick is long: sixty processes that each used less than one used much together.
        own = max(own, int(read(f"/proc/{pid}/schedstat").split(" ")[0] or 0) / 1e9)
    elif not runnable:
        states = (read(f"/proc/{pid}/task/{thread}/stat").rpartition(")")[2] for thread in _threads(pid))
        runnable = any(state.startswith(" R") for state in states)
    return runnable, own, waited_for


def descriptors(pid: int) -> int:
    """Count the descriptors that the process has open."""
    folder = f"/proc/{pid}/fd"
    try:
        return os.stat(folder).st_size or len(os.listdir(folder))  # kernels before 6.2 give no size
    except OSError:
        return 0


def sockets(pid: int) -> int:
    """Count its descriptors that are sockets."""
    found = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
    return found


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _numbers_of(pid: int) -> list[int]:
    for line in read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return [int(number) for number in line.split()[1:]]
    return []


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""


_PAGE = os.sysconf("SC_PAGE_SIZE")


# What the buffers of one socket may hold, and roughly what one mapping costs the kernel.
_SOCKET_BYTES = int(read("/proc/sys/net/core/wmem_default") or 212_992)
_MAPPING_BYTES = 256
# Every process has some. So few are not worth reading.
_FEW_DESCRIPTORS = 32


@dataclass(frozen=True)
class MemoryMeter:
    """The host pid of a run's first process, and whether a control group counts the kernel's memory."""

    pid: int
    grouped: bool

    @staticmethod
    def of(zygote: int, inside: int, *, grouped: bool) -> MemoryMeter | None:
        """The meter of a zygote's child whose pid in the zygote's namespace is `inside`."""
        pid = host_pid(zygote, inside)
        if not pid:
            return None
        _raise_oom_score(pid)
        return MemoryMeter(pid, grouped)

    def exceeds(self, limit: int, pids: list[int]) -> bool:
        """Return True if the processes use too much together. Without a group, the kernel's memory is
        added."""
        # First count shared pages in full, also those of the zygote: that is quick to read.
        files, rest = (0, 0) if self.grouped else kernel_bytes(self.pid, pids)
        if files + rest + sum(map(_resident, pids)) <= limit:
            return False
        shares = [_share(pid) for pid in pids]
        # Files that are mapped count once.
        shared = max(files, sum(mapped for _, mapped in shares))
        return rest + sum(own for own, _ in shares) + shared > limit


def kernel_bytes(first: int, pids: list[int]) -> tuple[int, int]:
    """Memory outside of the processes' addresses: files in the run's own file system; and page tables,
    mappings and buffers of sockets, which are assumed to be full."""
    return _files(first), sum(map(_tables_and_mappings, pids)) + sum(map(_buffers, pids))


def _files(pid: int) -> int:
    try:
        used = os.statvfs(f"/proc/{pid}/root{view.RUN}")
    except OSError:
        return 0  # without a mount namespace there is no own file system in memory
    return (used.f_blocks - used.f_bfree) * used.f_frsize


def _tables_and_mappings(pid: int) -> int:
    tables = re.search(r"VmPTE:\s+(\d+)", read(f"/proc/{pid}/status"))
    return (int(tables[1]) << 10 if tables else 0) + _MAPPING_BYTES * read(f"/proc/{pid}/maps").count("\n")


def _buffers(pid: int) -> int:
    if descriptors(pid) <= _FEW_DESCRIPTORS:
        return 0
    return _SOCKET_BYTES * max(0, sockets(pid) - _FEW_DESCRIPTORS)


def _share(pid: int) -> tuple[int, int]:
    """Proportional bytes in use: own memory, and files in memory."""
    sizes = dict(re.findall(r"^(Pss\w*):\s+(\d+)", read(f"/proc/{pid}/smaps_rollup"), re.M))
    mapped = int(sizes.get("Pss_Shmem", 0)) << 10
    return (int(sizes.get("Pss", 0)) << 10) - mapped, mapped


def _raise_oom_score(pid: int) -> None:
    """Makes the kernel kill a run before its zygote."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as score:
        score.write("950")


def _resident(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


LOOK_EVERY_S = 0.1
_LOOK_AT_MOST_EVERY_S = 0.005
# A worker that looks late does not know what the run did all that time.
_BELIEVED_S = 2 * LOOK_EVERY_S

TIMEOUT, DEADLINE, STARVED = "timeout", "deadline", "starved"


class Clock:
    """The clock of one run or one cell. It is outside the run, which could stop any clock of its own."""

    def __init__(self, job: dict[str, float], *, of_a_cell: bool = False) -> None:
        self.started = time.monotonic()
        self._limit_s = job["timeout_s"]
        self._wall_s = job["wall_s"]
        self._at_its_wall = DEADLINE if job["wall_is_deadline"] else STARVED
        self._looked_at = self.started
        self._asleep_s = 0.0
        self._used_s = 0.0
        # What a session used before this cell is known after the first look.
        self._used_before_s: float | None = None if of_a_cell else 0.0
        self._lost_s = 0.0
        self._seen: dict[int, tuple[float, float]] = {}

    def look(self, pids: list[int], waited_for: Sequence[int] = ()) -> None:
        """Reads the times of the run's processes. Call it often.

        `waited_for` are processes of a run that this one waits for: while they work, it does not sleep of its
        own will.
        """
        now = time.monotonic()
        since, self._looked_at = min(now - self._looked_at, _BELIEVED_S), now
        states, seen = set(), {}
        for pid in pids:
            runs, own_s, children_s = times(pid)
            states.add(runs)
            seen[pid] = (own_s, children_s)
        # The time of a child that nobody waits for is lost, unless it was added to its parent's.
        gone_s = sum(own_s + below_s for pid, (own_s, below_s) in self._seen.items() if pid not in seen)
        added_s = sum(below_s - self._seen[pid][1] for pid, (_, below_s) in seen.items() if pid in self._seen)
        self._lost_s += max(0.0, gone_s - added_s)
        self._seen = seen
        used_s = self._lost_s + sum(own_s + below_s for own_s, below_s in seen.values())
        if self._used_before_s is None:
            self._used_before_s = used_s - since
        # A process that has ended does not sleep: its parent may be waiting for a processor to reap it.
        elif False in states and True not in states and not any(times(p)[0] for p in waited_for):
            self._asleep_s += since
        self._used_s = max(self._used_s, used_s - self._used_before_s)

    def passed(self) -> str:
        """The limit that was passed, or nothing."""
        if self._used_s + self._asleep_s >= self._limit_s:
            return TIMEOUT
        return self._at_its_wall if time.monotonic() - self.started >= self._wall_s else ""

    def next_look_s(self) -> float:
        """Seconds until the next look: the earliest time at which a limit can be passed."""
        own_s = self._limit_s - self._used_s - self._asleep_s
        wall_s = self._wall_s - (time.monotonic() - self.started)
        return max(_LOOK_AT_MOST_EVERY_S, min(LOOK_EVERY_S, own_s, wall_s))
