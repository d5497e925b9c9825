"""A row of the table: one of verl's keys, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from toolwright.verl.asked import VerlConfig

Fate = Literal["becomes", "always", "unused", "refused"]


@dataclass(frozen=True)
class TranslatedSetting:
    """One of our keys with its value, and the keys of verl's that say so."""

    ours: str
    value: Any
    because: tuple[str, ...]


@dataclass(frozen=True)
class Note:
    """Something the user should know; the run goes on."""

    text: str


@dataclass(frozen=True)
class Changed:
    """What `--fit` did."""

    text: str


@dataclass(frozen=True)
class TranslationProblem:
    """Why the run cannot be what was asked for."""

    text: str


Outcome = TranslatedSetting | Note | Changed | TranslationProblem
Rule = Callable[["VerlConfig"], Iterator[Outcome]]


@dataclass(frozen=True)
class KeyRow:
    """`key` may end in `.*`: all beneath. `how` is the conversion, or the reason why there is none."""

    key: str
    fate: Fate
    how: str
    ours: tuple[str, ...] = ()
    rule: Rule | None = None
    harmless: tuple[Any, ...] = ()

    @property
    def block(self) -> str:
        """What a row for many keys begins with; empty for a row of one."""
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
    """One key, one key. Unset, verl's default holds; `ours` where what is learned does not depend on it."""

    def rule(asked: VerlConfig) -> Iterator[Outcome]:
        if asked.says(key) or unset == "verl's":
            yield TranslatedSetting(ours, convert(asked[key]), (key,))

    return KeyRow(key, "becomes", how, (ours,), rule)


def part(key: str, ours: str | tuple[str, ...], how: str, rule: Rule) -> KeyRow:
    """A key that a rule reads, often together with others."""
    return KeyRow(key, "becomes", how, (ours,) if isinstance(ours, str) else ours, rule)


def always(key: str, how: str) -> KeyRow:
    """It is so here whatever the key says, or nobody need ask for it."""
    return KeyRow(key, "always", how)


def unused(key: str, how: str) -> KeyRow:
    """Nothing here does it. What is learned does not depend on it, so the run goes on and says so."""
    return KeyRow(key, "unused", how)


def refused(key: str, how: str, *, harmless: tuple[Any, ...] = ()) -> KeyRow:
    """Nothing here does it, and without it something else would be learned: only verl's default will do."""
    return KeyRow(key, "refused", how, harmless=harmless)
