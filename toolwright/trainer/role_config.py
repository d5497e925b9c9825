"""The data that every role is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolwright.config import schema
from toolwright.tools.settings import Settings

RemoteRole = Callable[[str], Any]  # a role of another process, by its name


@dataclass(frozen=True)
class RoleConfig:
    """Everything that roles are built from."""

    config: schema.Config
    tools: Settings
    alphabet: str
    scorer: str  # the tasks' own
    max_turns: int
