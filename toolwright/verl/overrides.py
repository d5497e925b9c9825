"""Parse verl's overrides by Hydra's grammar: `+key=`, `++key=`, quoted text, lists, blocks, references."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from toolwright.config.keys import flatten
from toolwright.config.yaml_file import read_yaml
from toolwright.failures import UserError
from toolwright.verl import keys, named_configs

OURS = "toolwright."
EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")  # 1e-6: a number in Hydra's files, and text in YAML's


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


def parse(words: Sequence[str], *, config: Path | str | None = None) -> VerlOverrides:
    """Parse overrides, over a config file of the user's or a configuration of verl's by name."""
    parsed = VerlOverrides()
    if isinstance(config, Path):
        _read_file(config, parsed)
    elif config is not None:
        _read_named(config, parsed)
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
    bare = name.lstrip("+~")
    if bare == "hydra" or bare.startswith(("hydra.", "hydra/")):
        parsed.notes.append(f"{word}: not used: a run writes only into its own folder")
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
        parsed.values.pop(key, None)
        parsed.notes.append(f"{word}: {key} is as if it were not set")
    elif "/" in key or override.package:
        parsed.notes.append(f"{word}: not used: it chooses which of verl's engines shards the model")
    elif override.is_sweep_override():
        parsed.problems.append(f"{word}: several values; write a list as {name}=[{text}]")
    else:
        parsed.set(key, override.value())


def _read_file(path: Path, parsed: VerlOverrides) -> None:
    """Read a config of the user's. It may build on configurations of verl's and on files beside it."""
    tree = read_yaml(path)
    for item in tree.pop("defaults", []):
        if item == "_self_" or "hydra/" in str(item):
            continue
        if isinstance(item, str) and "@" in item:
            _read_block(path, item, parsed)
            continue
        beside = path.with_name(f"{item}.yaml")
        if isinstance(item, str) and beside.is_file() and beside != path:
            _read_file(beside, parsed)
        elif isinstance(item, str) and item in named_configs.names():
            _read_named(item, parsed)
        else:
            raise UserError(
                f"{path}: its defaults list names {item}, which is neither a file beside it nor one of "
                f"verl's configurations: {', '.join(named_configs.names())}"
            )
    tree.pop("hydra", None)
    _set_all(tree, parsed)


def _read_block(path: Path, item: str, parsed: VerlOverrides) -> None:
    """Read `FILE@BLOCK`: the keys of a file, beneath a block."""
    name, _, block = item.partition("@")
    file = path.parent / f"{name}.yaml"
    if not file.is_file():
        raise UserError(f"{path}: its defaults list names {item}, and there is no file {file}")
    tree = read_yaml(file)
    tree.pop("defaults", None)
    _set_all({f"{block}.{key}": value for key, value in tree.items()}, parsed)


def _read_named(name: str, parsed: VerlOverrides) -> None:
    try:
        values = named_configs.values_of(name)
    except UserError as error:
        parsed.problems.append(str(error))  # beside what becomes of the keys
        return
    if values is None:
        raise UserError(
            f"--config-name {name}: not a configuration of verl, and there is no file {name}.yaml in "
            "--config-path; name its folder"
        )
    _set_all(values, parsed)


def _set_all(tree: Mapping[str, Any], parsed: VerlOverrides) -> None:
    for key, value in flatten(tree):
        parsed.set(key, float(value) if isinstance(value, str) and EXPONENT.fullmatch(value) else value)
