"""The table: every key of verl with its translation.

`table.yaml` lists the keys. A module for each block of verl's configuration holds the rules that read them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from toolwright.verl.config import VerlConfig
from toolwright.verl.translation import Translation

FILE = Path(__file__).parents[1] / "table.yaml"
Support = Literal["always", "unused", "near", "refused"]
UNTRANSLATED: tuple[Support, ...] = get_args(Support)
# Reads verl's configuration, and writes to the translation what it becomes.
Rule = Callable[[VerlConfig, Translation], None]


@dataclass(frozen=True)
class KeyRow:
    """One key of verl, or all keys beneath it (`key.*`). `how`: the conversion, or why there is none."""

    key: str
    support: Support | Literal["translated"]
    how: str
    ours: tuple[str, ...] = ()
    rule: Rule | None = None
    harmless: tuple[Any, ...] = ()


def _same(key: str, ours: str, where: Callable[[VerlConfig], bool]) -> Rule:
    """The rule of a key that becomes one of ours with the value that it has, where that is asked for."""

    def rule(verl: VerlConfig, to: Translation) -> None:
        if where(verl):
            to.set(ours, verl[key], key)

    return rule


@functools.cache
def _named(name: str) -> Any:
    """The rule or the condition `MODULE:NAME` of this package."""
    module, _, place = name.partition(":")
    return attrgetter(place)(importlib.import_module(f"{__name__}.{module}"))


def _rule(name: str, key: str, ours: Sequence[str]) -> Rule:
    kind, _, condition = name.partition(" where ")
    if kind == "same":
        return _same(key, ours[0], _named(condition) if condition else lambda verl: True)
    if kind == "same_if_set":
        return _same(key, ours[0], lambda verl: verl.is_set(key))
    return _named(name)


def _rows(section: dict[str, Any], harmless: dict[str, Any]) -> Iterator[KeyRow]:
    for name, keys in section.get("translated", {}).items():
        for key, (*ours, how) in keys.items():
            yield KeyRow(key, "translated", how, tuple(ours), _rule(name, key, ours))
    for support in UNTRANSLATED:
        for reason, listed in section.get(support, {}).items():
            for key in listed:
                yield KeyRow(key, support, reason, harmless=tuple(harmless.get(key, ())))


def _sections() -> dict[str, list[KeyRow]]:
    tree = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    harmless = tree.pop("harmless")
    return {section: list(_rows(own, harmless)) for section, own in tree.items()}


SECTIONS = _sections()
ROWS: list[KeyRow] = [row for rows in SECTIONS.values() for row in rows]


@functools.cache
def _by_key() -> dict[str, KeyRow]:
    return {row.key: row for row in ROWS}


def row_of(key: str) -> KeyRow | None:
    """The row of this key: its own, or else the narrowest row for many keys that covers it."""
    names = key.split(".")
    above = [f"{'.'.join(names[:depth])}.*" for depth in range(len(names), 0, -1)]
    return next((_by_key()[name] for name in (key, *above) if name in _by_key()), None)
