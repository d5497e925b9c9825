"""A row of the table: one of verl's keys and its translation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from toolwright.verl.config import VerlConfig
    from toolwright.verl.translation import Translation

Support = Literal["translated", "always", "unused", "near", "refused"]
# Reads verl's configuration, and writes to the translation what it becomes.
Rule = Callable[["VerlConfig", "Translation"], None]


@dataclass(frozen=True)
class KeyRow:
    """One key of verl, or all keys beneath it (`key.*`). `how`: the conversion, or why there is none."""

    key: str
    support: Support
    how: str
    ours: tuple[str, ...] = ()
    rule: Rule | None = None
    harmless: tuple[Any, ...] = ()


def same(
    key: str,
    ours: str,
    how: str = "",
    *,
    convert: Callable[[Any], Any] = lambda value: value,
    unset: Literal["verl's", "ours"] = "verl's",
) -> KeyRow:
    """A key that becomes one of ours.

    If it is not set, verl's default holds; `unset="ours"` where the result does not depend on it.
    """

    def rule(verl: VerlConfig, to: Translation) -> None:
        if verl.is_set(key) or unset == "verl's":
            to.set(ours, convert(verl[key]), key)

    return KeyRow(key, "translated", how, (ours,), rule)


def part(key: str, ours: str | tuple[str, ...], how: str, rule: Rule | None = None) -> KeyRow:
    """A key that a rule reads, often together with others."""
    return KeyRow(key, "translated", how, (ours,) if isinstance(ours, str) else ours, rule)
