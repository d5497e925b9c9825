"""Measures, from outside, the memory that all processes of a run use together."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from toolwright.sandbox import processes, view

_PAGE = os.sysconf("SC_PAGE_SIZE")


# What the buffers of one socket may hold, and roughly what one mapping costs the kernel.
_SOCKET_BYTES = int(processes.read("/proc/sys/net/core/wmem_default") or 212_992)
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
        pid = processes.host_pid(zygote, inside)
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
    tables = re.search(r"VmPTE:\s+(\d+)", processes.read(f"/proc/{pid}/status"))
    return (int(tables[1]) << 10 if tables else 0) + _MAPPING_BYTES * _mappings(pid)


def _mappings(pid: int) -> int:
    return processes.read(f"/proc/{pid}/maps").count("\n")


def _buffers(pid: int) -> int:
    if processes.descriptors(pid) <= _FEW_DESCRIPTORS:
        return 0
    return _SOCKET_BYTES * max(0, processes.sockets(pid) - _FEW_DESCRIPTORS)


def _share(pid: int) -> tuple[int, int]:
    """Proportional bytes in use: own memory, and files in memory."""
    sizes = dict(re.findall(r"^(Pss\w*):\s+(\d+)", processes.read(f"/proc/{pid}/smaps_rollup"), re.M))
    mapped = int(sizes.get("Pss_Shmem", 0)) << 10
    return (int(sizes.get("Pss", 0)) << 10) - mapped, mapped


def _raise_oom_score(pid: int) -> None:
    """Makes the kernel kill a run before its zygote."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as score:
        score.write("950")


def _resident(pid: int) -> int:
    fields = processes.read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0
