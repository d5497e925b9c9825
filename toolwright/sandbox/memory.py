"""The memory that all processes of a run use together, read from outside."""

from __future__ import annotations

import os
from dataclasses import dataclass

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Weight:
    """A run's first process, by its number on the host; its descendants hang below it whatever they do."""

    pid: int
    inherited_bytes: int

    @staticmethod
    def of(zygote: int, inside: int) -> Weight | None:
        """Finds the child of a zygote that is `inside` in the zygote's own numbering."""
        depth = len(_numbers_of(zygote))
        for pid in _children(zygote):
            if _numbers_of(pid)[depth - 1 : depth] == [inside]:
                return Weight(pid, _resident(zygote))
        return None

    def exceeds(self, limit: int) -> bool:
        """Whether the processes together use more.

        Pages shared with the zygote are not the run's. Few processes: what each has beyond the zygote is
        counted, which is quick to read. Many could hide as many times the zygote's size below that: where
        they might, pages are counted by their owners.
        """
        sizes = {pid: _resident(pid) for pid in self._processes()}
        if sum(max(0, size - self.inherited_bytes) for size in sizes.values()) > limit:
            return True
        return sum(sizes.values()) > limit and sum(map(_share, sizes)) > limit

    def _processes(self) -> list[int]:
        found = [self.pid]
        for pid in found:
            found += _children(pid)
        return found


def _children(pid: int) -> list[int]:
    """The kernel lists them by the thread that forked them."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    lists = (_read(f"/proc/{pid}/task/{thread}/children") for thread in threads)
    return [int(child) for listed in lists for child in listed.split()]


def _share(pid: int) -> int:
    """Bytes in use, each page divided by how many processes share it."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def _resident(pid: int) -> int:
    fields = _read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _numbers_of(pid: int) -> list[int]:
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return [int(number) for number in line.split()[1:]]
    return []


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except (OSError, ValueError):
        return ""
