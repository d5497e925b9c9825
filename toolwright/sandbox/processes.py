"""Finds and reads the processes of a run, from outside."""

from __future__ import annotations

import contextlib
import os

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
