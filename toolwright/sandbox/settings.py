"""The settings of a sandbox server."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields

from toolwright.failures import UserError
from toolwright.sandbox.limits import RunLimits

PRELOAD = ("numpy", "sympy")
_LEAST = {
    "workers": 0, "runs_per_worker": 1, "queue_limit": 1, "queue_timeout_s": 0, "sessions_max": 0,
    "session_idle_s": 0, "body_mb": 1, "compile_timeout_s": 0, "drain_s": 0,
}  # fmt: skip


def cores() -> int:
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class SandboxSettings:
    """Settings of a server. The defaults suit a machine that does little else."""

    isolation: str = "full"
    workers: int = 0  # 0: one a core
    runs_per_worker: int = 2
    preload: tuple[str, ...] = PRELOAD
    limits: RunLimits = field(default_factory=RunLimits)
    queue_limit: int = 4096
    queue_timeout_s: float = 60.0
    sessions_max: int = 256
    session_idle_s: float = 600.0
    body_mb: int = 64
    compile_timeout_s: float = 20.0
    drain_s: float = 30.0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not value >= least:  # refuses NaN too
                raise UserError(f"{name} is {value}; it must be at least {least:g}")
        for field_ in fields(RunLimits):
            value = getattr(self.limits, field_.name)
            if not value > 0:
                raise UserError(f"{field_.name} is {value}; it must be more than 0")

    @property
    def worker_count(self) -> int:
        return self.workers or cores()
