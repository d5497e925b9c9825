"""A row of the table: one of verl's keys and its translation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from toolwright.verl.config import VerlConfig

Support = Literal["translated", "always", "unused", "near", "refused"]


@dataclass(frozen=True)
class TranslatedSetting:
    """One of our keys with its value, and the keys of verl that it comes from."""

    ours: str
    value: Any
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """Something the user should know; the run goes on."""

    text: str


@dataclass(frozen=True)
class FitChange:
    """A change that `--fit` made."""

    text: str


@dataclass(frozen=True)
class Near:
    """Something done nearly as verl does it: a change with `--fit`, a problem without."""

    text: str


@dataclass(frozen=True)
class TranslationProblem:
    """A reason why the command line cannot be translated."""

    text: str


Outcome = TranslatedSetting | Note | FitChange | Near | TranslationProblem
Rule = Callable[["VerlConfig"], Iterator[Outcome]]


@dataclass(frozen=True)
class KeyRow:
    """One key of verl, or all keys beneath it (`key.*`). `how`: the conversion, or why there is none."""

    key: str
    support: Support
    how: str
    ours: tuple[str, ...] = ()
    rule: Rule | None = None
    harmless: tuple[Any, ...] = ()

    @property
    def block(self) -> str:
        """The prefix of a row for many keys; empty for a row of one key."""
        return self.key.removesuffix("*") if self.key.endswith(".*") else ""

    def covers(self, key: str) -> bool:
        return key == self.key or (bool(self.block) and (key + ".").startswith(self.block))


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

    def rule(verl: VerlConfig) -> Iterator[Outcome]:
        if verl.is_set(key) or unset == "verl's":
            yield TranslatedSetting(ours, convert(verl[key]), (key,))

    return KeyRow(key, "translated", how, (ours,), rule)


def part(key: str, ours: str | tuple[str, ...], how: str, rule: Rule) -> KeyRow:
    """A key that a rule reads, often together with others."""
    return KeyRow(key, "translated", how, (ours,) if isinstance(ours, str) else ours, rule)
