"""The memory that all processes of a run use together, read from outside."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass

from toolwright.sandbox import processes, view

_PAGE = os.sysconf("SC_PAGE_SIZE")


# What one socket's buffers may hold, and about what the kernel takes to remember one mapping.
_SOCKET_BYTES = int(processes.read("/proc/sys/net/core/wmem_default") or 212_992)
_MAPPING_BYTES = 256
# Every process has some; as many as this are not worth reading.
_FEW_DESCRIPTORS = 32


@dataclass(frozen=True)
class Weight:
    """A run's first process, by its number on the host, and whether a control group counts for the kernel."""

    pid: int
    grouped: bool

    @staticmethod
    def of(zygote: int, inside: int, *, grouped: bool) -> Weight | None:
        """Of the child of a zygote that is `inside` in the zygote's own numbering."""
        pid = processes.on_the_host(zygote, inside)
        if not pid:
            return None
        _offer_to_the_oom_killer(pid)
        return Weight(pid, grouped)

    def exceeds(self, limit: int, pids: list[int]) -> bool:
        """Whether the processes together use more, and where no group counts it, the kernel for them."""
        # Pages that are shared, with the zygote too, are counted in full at first: that is quick to read.
        files, rest = (0, 0) if self.grouped else kernel_bytes(self.pid, pids)
        if files + rest + sum(map(_resident, pids)) <= limit:
            return False
        shares = [_share(pid) for pid in pids]
        # What is mapped of the files is counted once.
        shared = max(files, sum(mapped for _, mapped in shares))
        return rest + sum(own for own, _ in shares) + shared > limit


def kernel_bytes(first: int, pids: list[int]) -> tuple[int, int]:
    """Memory that need not be in any process's addresses: files in the run's own file system; page tables,
    mappings, and buffers of sockets, which are taken for full."""
    return _files(first), sum(map(_tables_and_mappings, pids)) + sum(map(_buffers, pids))


def _files(pid: int) -> int:
    try:
        used = os.statvfs(f"/proc/{pid}/root{view.RUN}")
    except OSError:
        return 0  # without a mount namespace it has none of its own, and they are not in memory
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
    """Bytes in use, each page divided by how many processes share it: of its own, and of files in memory."""
    told = dict(re.findall(r"^(Pss\w*):\s+(\d+)", processes.read(f"/proc/{pid}/smaps_rollup"), re.M))
    mapped = int(told.get("Pss_Shmem", 0)) << 10
    return (int(told.get("Pss", 0)) << 10) - mapped, mapped


def _offer_to_the_oom_killer(pid: int) -> None:
    """A run goes before the zygote that others come from."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "w") as score:
        score.write("950")


def _resident(pid: int) -> int:
    fields = processes.read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0
