"""Parse verl's overrides by Hydra's grammar: `+key=`, `++key=`, quoted text, lists, blocks, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from toolwright.config.keys import flatten
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError
from toolwright.verl import keys

OURS = "toolwright."
BASE = "ppo_trainer"


@dataclass
class VerlOverrides:
    """A parsed command line. If a key is set twice, the last value counts, as in verl."""

    values: dict[str, Any] = field(default_factory=dict)
    ours: list[str] = field(default_factory=list)  # `toolwright.key=value`, without the prefix
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def set(self, key: str, value: Any) -> None:
        whole_block = isinstance(value, Mapping) and value and (key in keys.blocks())
        for path, leaf in flatten({key: value}) if whole_block else [(key, value)]:
            self.values.pop(path, None)
            self.values[path] = leaf


def parse(words: Sequence[str], *, config: Path | None = None) -> VerlOverrides:
    """Parse overrides, over the user's own config file if there is one."""
    parsed = VerlOverrides()
    if config is not None:
        _read_file(config, parsed)
    for word in words:
        _read_word(word, parsed)
    return parsed


def _read_word(word: str, parsed: VerlOverrides) -> None:
    name, equals, text = word.partition("=")
    if not equals and not word.startswith("~"):
        parsed.problems.append(
            f"{word}: not a key=value; verl's settings are written like data.train_batch_size=64"
        )
        return
    if name.lstrip("+").startswith(OURS):
        parsed.ours.append(f"{name.lstrip('+').removeprefix(OURS)}={text}")
        return
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        # Hydra's grammar cannot read ~/data or a path with an accent: take the text as it is.
        parsed.set(name.lstrip("+"), text)
        return
    key = override.key_or_group
    if override.is_delete():
        parsed.problems.append(f"{word}: a key cannot be deleted here; set it to null or to verl's default")
    elif key == "hydra" or key.startswith(("hydra.", "hydra/")):
        parsed.notes.append(f"{word}: not used: a run writes into its own folder and nowhere else")
    elif "/" in key or override.package:
        parsed.problems.append(
            f"{word}: verl's config groups choose its own trainers and engines, which are not here"
        )
    elif override.is_sweep_override():
        parsed.problems.append(f"{word}: several values; write a list as {name}=[{text}]")
    else:
        parsed.set(key, override.value())


def _read_file(path: Path, parsed: VerlOverrides) -> None:
    """Read a config of the user's. It may build on verl's `ppo_trainer` and on nothing else."""
    tree = read_yaml(path)
    listed = tree.pop("defaults", [])
    others = [item for item in listed if item not in (BASE, "_self_")]
    if others:
        shown = ", ".join(map(str, others))
        raise UserError(
            f"{path}: its defaults list names {shown}; only a file that builds on {BASE} alone can be read"
        )
    tree.pop("hydra", None)
    for key, value in flatten(tree):
        parsed.set(key, value)
