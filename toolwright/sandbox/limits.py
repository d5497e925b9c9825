"""How much of the machine one run may use."""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass

_WALL_FACTOR = 10
_WALL_GRACE_S = 30.0


@dataclass(frozen=True)
class RunLimits:
    """Per run. The three that a request may lower or raise come with the most that it may ask for."""

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
    # A run that goes on writing is ended when it has written this much, most of it thrown away.
    flood_mb: int = 64
    fetch_mb: int = 16


def fixed(limits: RunLimits) -> list[tuple[int, int, int]]:
    """What is the same for every run, set while the process waits for its job: kind, soft, hard."""
    wanted = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_mb << 20),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_NPROC, limits.processes),
        (resource.RLIMIT_SIGPENDING, limits.signals),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
    ]
    return [(kind, *soft_and_hard(kind, amount)) for kind, amount in wanted]


def for_the_job(timeout_s: float, memory_bytes: int, address_space: bool) -> None:
    """What the request decides.

    Virtual machines reserve gigabytes of addresses that they never touch: those get a limit on data.
    """
    memory = resource.RLIMIT_AS if address_space else resource.RLIMIT_DATA
    for kind, amount in ((resource.RLIMIT_CPU, cpu_seconds(timeout_s)), (memory, memory_bytes)):
        resource.setrlimit(kind, soft_and_hard(kind, amount))


def cpu_seconds(timeout_s: float) -> int:
    """More than a process can use before its run is ended from outside."""
    return math.ceil(timeout_s) + 1


def wall_seconds(timeout_s: float) -> float:
    """How long a run may take by the wall clock, of which its own time is `timeout_s` at most.

    The rest is waiting for a processor: only a machine with ten times the work that it can do lets it pass.
    """
    return _WALL_FACTOR * timeout_s + _WALL_GRACE_S


def soft_and_hard(kind: int, amount: int) -> tuple[int, int]:
    """Both at the amount, so that a run cannot raise it again; less where the machine's owner says so."""
    _, hard = resource.getrlimit(kind)
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    return amount, amount
