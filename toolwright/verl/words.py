"""verl's key=value words, by Hydra's grammar: `+key=`, `++key=`, quoted text, lists, blocks, references."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from toolwright.config.keys import flatten
from toolwright.config.stored import read_tree
from toolwright.failures import UserError
from toolwright.verl import keys

OURS = "toolwright."
BASE = "ppo_trainer"


@dataclass
class Words:
    """What was said: each key once, the last time it was said, since that is what counts in verl."""

    said: dict[str, Any] = field(default_factory=dict)
    ours: list[str] = field(default_factory=list)  # `toolwright.key=value`: for us as it stands
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def say(self, key: str, value: Any) -> None:
        whole_block = isinstance(value, Mapping) and value and (key in keys.blocks())
        for path, leaf in flatten({key: value}) if whole_block else [(key, value)]:
            self.said.pop(path, None)
            self.said[path] = leaf


def read(words: Sequence[str], *, config: Path | None = None) -> Words:
    """The words over the user's own file, where there is one."""
    read = Words()
    if config is not None:
        _read_file(config, read)
    for word in words:
        _read_word(word, read)
    return read


def _read_word(word: str, read: Words) -> None:
    name, equals, typed = word.partition("=")
    if not equals and not word.startswith("~"):
        read.problems.append(
            f"{word}: not a key=value; verl's settings are written like data.train_batch_size=64"
        )
        return
    if name.lstrip("+").startswith(OURS):
        read.ours.append(f"{name.lstrip('+').removeprefix(OURS)}={typed}")
        return
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException:
        # Hydra has no word for ~/data or a path with an accent: what was typed is what is meant.
        read.say(name.lstrip("+"), typed)
        return
    key = override.key_or_group
    if override.is_delete():
        read.problems.append(f"{word}: a key cannot be taken away here; set it to null or to verl's default")
    elif key == "hydra" or key.startswith(("hydra.", "hydra/")):
        read.notes.append(f"{word}: not used: a run writes into its own folder and nowhere else")
    elif "/" in key or override.package:
        read.problems.append(
            f"{word}: verl's config groups choose its own trainers and engines, which are not here"
        )
    elif override.is_sweep_override():
        read.problems.append(f"{word}: several values; write a list as {name}=[{typed}]")
    else:
        read.say(key, override.value())


def _read_file(path: Path, read: Words) -> None:
    """A user's own config over verl's: its keys, once it is clear that nothing else is composed into it."""
    tree = read_tree(path)
    listed = tree.pop("defaults", [])
    others = [item for item in listed if item not in (BASE, "_self_")]
    if others:
        shown = ", ".join(map(str, others))
        raise UserError(
            f"{path}: its defaults list names {shown}; only a file that builds on {BASE} alone can be read"
        )
    tree.pop("hydra", None)
    for key, value in flatten(tree):
        read.say(key, value)
