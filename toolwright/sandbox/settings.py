"""What a server is told when it starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from toolwright.sandbox.limits import Limits

PRELOAD = ("numpy", "sympy")


def cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Settings:
    """Defaults suit one machine that does little else; every one is an option of `sandbox serve`."""

    isolation: str = "full"
    workers: int = 0  # 0: one a core
    runs_per_worker: int = 2
    preload: tuple[str, ...] = PRELOAD
    limits: Limits = field(default_factory=Limits)
    queue_limit: int = 4096
    queue_timeout_s: float = 60.0
    sessions_max: int = 256
    session_idle_s: float = 600.0
    body_mb: int = 64
    compile_timeout_s: float = 20.0
    drain_s: float = 30.0

    @property
    def worker_count(self) -> int:
        return self.workers or cores()
