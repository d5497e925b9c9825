"""Limits on one run."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_WALL_FACTOR = 10
_WALL_GRACE_S = 30.0


@dataclass(frozen=True)
class RunLimits:
    """Limits per run. A request may set `timeout_s` and `memory_mb` up to the `max` of each."""

    timeout_s: float = 10.0
    timeout_max_s: float = 600.0
    memory_mb: int = 512
    memory_max_mb: int = 4096
    processes: int = 64
    open_files: int = 256
    descriptors: int = 1024
    signals: int = 256
    file_mb: int = 64
    disk_mb: int = 128
    files_in_disk: int = 20_000
    output_kb: int = 1024
    # A run that has written this much is ended. Most of it is dropped before.
    flood_mb: int = 64
    fetch_mb: int = 16


def set_inherited(limits: RunLimits) -> None:
    """Sets rlimits of the calling process that its forks, the runs, have from it. None of them hinders it."""
    _set((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, limits.file_mb << 20))
    _set((resource.RLIMIT_MSGQUEUE, 0), (resource.RLIMIT_MEMLOCK, 0))


def fixed(limits: RunLimits) -> list[tuple[int, int, int]]:
    """The other rlimits of every run (kind, soft, hard), set while the process waits for its job. The kernel
    counts most of them by user, so that a parent of many runs could not live with them."""
    amounts = [
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_SIGPENDING, limits.signals),
    ]
    return [(kind, *soft_and_hard(kind, amount)) for kind, amount in amounts]


def for_the_job(timeout_s: float, memory_bytes: int, address_space: bool) -> None:
    """Sets the rlimits that depend on the request.

    Virtual machines such as V8 reserve gigabytes of addresses and never use them. They get a limit on data.
    """
    memory = resource.RLIMIT_AS if address_space else resource.RLIMIT_DATA
    # More processor time than the process can use before its run is ended from outside.
    _set((resource.RLIMIT_CPU, int(timeout_s) + 2), (memory, memory_bytes))


def _set(*amounts: tuple[int, int]) -> None:
    for kind, amount in amounts:
        resource.setrlimit(kind, soft_and_hard(kind, amount))


def wall_seconds(timeout_s: float) -> float:
    """The longest a run may take by the wall clock. Its own time is `timeout_s` at most.

    The rest is waiting for a processor. Only a machine with ten times too much work needs that long.
    """
    return _WALL_FACTOR * timeout_s + _WALL_GRACE_S


def soft_and_hard(kind: int, amount: int) -> tuple[int, int]:
    """Both limits at the amount, so that a run cannot raise it; less if the machine allows less."""
    _, hard = resource.getrlimit(kind)
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    return amount, amount
