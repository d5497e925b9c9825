"""The data from which every role is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolwright.config import schema
from toolwright.tools.settings import Settings

RemoteRole = Callable[[str], Any]  # a role of another process, by its name


@dataclass(frozen=True)
class RoleConfig:
    """Everything that roles are built from. It is plain data and can be sent to other processes."""

    config: schema.Config
    tools: Settings
    alphabet: str
    scorer: str  # the tasks' own
    max_turns: int
