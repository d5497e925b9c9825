"""verl's configuration as a command line sets it, and the machine that it is to run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from toolwright.config.keys import format_value
from toolwright.config.names import Registered
from toolwright.failures import UserError
from toolwright.tasks import rows
from toolwright.verl import keys

# Packages that an engine stands on; those not listed need nothing further.
PACKAGES = {"vllm": "vllm", "sglang": "sglang"}


@dataclass(frozen=True)
class Machine:
    """What a verl command line may need of this machine: devices and engines."""

    devices: int  # GPUs; without any, the CPU does the work of one
    engines: frozenset[str]

    @classmethod
    def here(cls) -> Machine:
        return cls(_devices(), frozenset(name for name in engine_names() if missing_for(name) is None))

    @property
    def usable(self) -> int:
        """How many devices a run uses here: one, since a translated run is not sharded."""
        return 1


def engine_names() -> frozenset[str]:
    return Registered("engine", "toolwright.engines").names()


def missing_for(engine: str) -> str | None:
    """Why this engine cannot be used here, or None."""
    if engine not in engine_names():
        known = ", ".join(sorted(engine_names()))
        return f"Toolwright has no engine of that name yet (it has {known})"
    package = PACKAGES.get(engine)
    if package and importlib.util.find_spec(package) is None:
        return f"the package {package} is not installed"
    return None


def _devices() -> int:
    """Count GPUs; without a device file there are none, and torch need not be loaded to know it."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return 0
    import torch

    return torch.cuda.device_count()


@dataclass
class VerlConfig:
    """Every key's value, set by the user or verl's default, as verl would compose it."""

    overrides: Mapping[str, Any]
    machine: Machine
    fit: bool = False
    _tree: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        tree = keys.default_tree()
        for key, value in self.overrides.items():
            keys.put(tree, key, value)
        try:
            self._tree = OmegaConf.to_container(OmegaConf.create(tree), resolve=True)  # type: ignore[assignment]
        except OmegaConfBaseException as error:
            raise UserError(" ".join(str(error).split())) from None

    def __getitem__(self, key: str) -> Any:
        value: Any = self._tree
        for name in key.split("."):
            value = value[name]
        return value

    def is_set(self, *names: str) -> bool:
        """Whether the user set any of these keys."""
        return any(key in self.overrides for key in names)

    def first(self, *names: str) -> str:
        """The first of these keys that the user set, or else the first of all."""
        return next((key for key in names if self.is_set(key)), names[0])

    def number(self, key: str) -> int:
        """The value, which must be a positive integer."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self.as_typed(key)}: expected a positive integer")
        return value

    def as_typed(self, key: str) -> str:
        """`key=value`"""
        return f"{key}={format_value(self[key])}"

    def files(self, key: str) -> list[str]:
        value = self[key]
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    def rows_of(self, key: str) -> int:
        """How many tasks the files have."""
        return sum(rows.count(Path(path)) for path in self.files(key))
