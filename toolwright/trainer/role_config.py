"""What every role is built from, and how one reaches another: data and names, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from toolwright.config import schema
from toolwright.tools.settings import Settings


@dataclass(frozen=True)
class RoleConfig:
    """All that any role is built from."""

    config: schema.Config
    tools: Settings
    alphabet: str
    scorer: str  # the tasks' own
    max_turns: int


class RemoteRole(Protocol):
    """A role in another process, by its name."""

    def ask(self, method: str, *arguments: Any) -> Any: ...


Colleagues = Callable[[str], RemoteRole]
