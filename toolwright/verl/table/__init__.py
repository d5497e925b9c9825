"""The table: every key of verl with its translation.

`table.yaml` lists the keys. A module for each block of verl's configuration holds the rules that read them.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import yaml

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import KeyRow, Rule
from toolwright.verl.translation import Translation

FILE = Path(__file__).parents[1] / "table.yaml"


def _same(key: str, ours: str, *, if_set: bool) -> Rule:
    """The rule of a key that becomes one of ours with the value that it has."""

    def rule(verl: VerlConfig, to: Translation) -> None:
        if verl.is_set(key) or not if_set:
            to.set(ours, verl[key], key)

    return rule


@functools.cache
def _rule(name: str) -> Rule:
    """The rule `MODULE:NAME` of this package."""
    module, _, place = name.partition(":")
    found: Rule = attrgetter(place)(importlib.import_module(f"{__name__}.{module}"))
    return found


def _rows(section: dict[str, Any], harmless: dict[str, Any]) -> Iterator[KeyRow]:
    for name, keys in section.get("translated", {}).items():
        for key, (*ours, how) in keys.items():
            if name in ("same", "same_if_set"):
                rule = _same(key, ours[0], if_set=name == "same_if_set")
            else:
                rule = _rule(name)
            yield KeyRow(key, "translated", how, tuple(ours), rule)
    for support in ("always", "unused", "near", "refused"):
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
