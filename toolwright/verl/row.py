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
