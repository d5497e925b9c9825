"""The memory that all processes of a run use together, read from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass

from toolwright.sandbox import processes

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Weight:
    """A run's first process, by its number on the host, and what it began with."""

    pid: int
    inherited_bytes: int

    @staticmethod
    def of(zygote: int, inside: int) -> Weight | None:
        """Of the child of a zygote that is `inside` in the zygote's own numbering."""
        pid = processes.on_the_host(zygote, inside)
        return Weight(pid, _resident(zygote)) if pid else None

    def exceeds(self, limit: int, pids: list[int]) -> bool:
        """Whether the processes together use more.

        Pages shared with the zygote are not the run's. Few processes: what each has beyond the zygote is
        counted, which is quick to read. Many could hide as many times the zygote's size below that: where
        they might, pages are counted by their owners.
        """
        sizes = {pid: _resident(pid) for pid in pids}
        if sum(max(0, size - self.inherited_bytes) for size in sizes.values()) > limit:
            return True
        return sum(sizes.values()) > limit and sum(map(_share, sizes)) > limit


def _share(pid: int) -> int:
    """Bytes in use, each page divided by how many processes share it."""
    for line in processes.read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _resident(pid: int) -> int:
    fields = processes.read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0
