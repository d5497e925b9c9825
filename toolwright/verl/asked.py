"""What a verl command line asks for: every key's value, said or by default, and what it is asked of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from toolwright.config.keys import written
from toolwright.failures import UserError
from toolwright.tasks import rows
from toolwright.verl import keys
from toolwright.verl.machine import Machine


@dataclass
class VerlConfig:
    """verl's configuration as its own composition would have it, on this machine."""

    said: Mapping[str, Any]
    machine: Machine
    fit: bool = False
    _tree: dict[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        tree = keys.default_tree()
        for key, value in self.said.items():
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

    def says(self, *names: str) -> bool:
        """Whether the user set any of these."""
        return any(key in self.said for key in names)

    def first(self, *names: str) -> str:
        """The first of these that the user set, else the first."""
        return next((key for key in names if self.says(key)), names[0])

    def number(self, key: str) -> int:
        """The value, which must be a positive integer."""
        value = self[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{self.shown(key)}: expected a positive integer")
        return value

    def shown(self, key: str) -> str:
        return f"{key}={written(self[key])}"

    def files(self, key: str) -> list[str]:
        value = self[key]
        return [str(item) for item in value] if isinstance(value, list) else [str(value)]

    def rows_of(self, key: str) -> int:
        """How many tasks the files have."""
        return sum(rows.count(Path(path)) for path in self.files(key))
