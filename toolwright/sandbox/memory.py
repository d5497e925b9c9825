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
        for pid in _children(zygote):
            numbers = _numbers_of(pid)
            if inside in numbers[:2]:
                return Weight(pid, _resident(zygote))
        return None

    def resident_bytes(self) -> int:
        """Pages shared with the zygote are not the run's, so each process starts below zero."""
        total, waiting = 0, [self.pid]
        while waiting:
            pid = waiting.pop()
            total += max(0, _resident(pid) - self.inherited_bytes)
            waiting += _children(pid)
        return total


def _children(pid: int) -> list[int]:
    return [int(child) for child in _read(f"/proc/{pid}/task/{pid}/children").split()]


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
