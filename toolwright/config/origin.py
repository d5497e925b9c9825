"""Where each value came from: the layers a configuration was merged from, the last to state it wins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override

from toolwright.config.block import Block
from toolwright.config.keys import flatten


@dataclass(frozen=True)
class ConfigLayer:
    """One config of the defaults list: what it states, and what its values' origin is called."""

    config: str
    label: str
    tree: Mapping[str, Any]

    @property
    def preset(self) -> bool:
        """One choice of a group, not a config that a command starts from."""
        return "/" in self.config


@dataclass(frozen=True)
class Resolved:
    """A valid configuration and where each of its values came from."""

    config: Block
    origins: Mapping[str, str]

    def origin(self, key: str) -> str:
        return origin_of(self.origins, key)


def origins_of(layers: Sequence[ConfigLayer], overrides: Sequence[Override]) -> dict[str, str]:
    """Each stated key with who stated it last."""
    origins: dict[str, str] = {}
    for layer in layers:
        origins.update({key: layer.label for key, _ in flatten(layer.tree)})
    for override in overrides:
        key, value = override.key_or_group, override.value()
        if override.is_delete():
            origins = {
                path: label
                for path, label in origins.items()
                if path != key and not path.startswith(key + ".")
            }
        elif isinstance(value, dict):
            origins.update({path: "command line" for path, _ in flatten({key: value})})
        else:
            origins[key] = "command line"
    return origins


def origin_of(origins: Mapping[str, str], key: str) -> str:
    """A value is from where it was last stated; a block from where its first stated key is."""
    if key in origins:
        return origins[key]
    return next((label for path, label in origins.items() if path.startswith(key + ".")), "default")
