"""What this machine has that a verl command line may ask for: devices and engines."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from toolwright.config.names import Registered

# Packages that an engine stands on; those not listed need nothing further.
PACKAGES = {"vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True)
class Machine:
    devices: int  # GPUs; without any, the CPU does the work of one
    engines: frozenset[str]

    @classmethod
    def here(cls) -> Machine:
        return cls(_devices(), frozenset(name for name in registered() if lacks(name) is None))

    @property
    def usable(self) -> int:
        """How many devices a run here works on: one, until a learner can be spread over several."""
        return 1


def registered() -> frozenset[str]:
    return Registered("engine", "toolwright.engines").names()


def lacks(engine: str) -> str | None:
    """Why this engine cannot be used here, if it cannot."""
    if engine not in registered():
        known = ", ".join(sorted(registered()))
        return f"Toolwright has no engine of that name yet (it has {known})"
    package = PACKAGES.get(engine)
    if package and importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed"
    return None


def _devices() -> int:
    """Without a device file there is no GPU, and torch need not be loaded to know it."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 0
    import torch

    return torch.cuda.device_count()
