"""The data from which every role is built, and the function that builds the roles of one process. It imports
torch only for roles that need it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.config import schema
from toolwright.runtime.host import Rank
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


def build(
    roles: dict[str, Any],
    names: Sequence[str],
    role_config: RoleConfig,
    remote_role: RemoteRole | None,
    rank: Rank,
) -> None:
    """Put the named roles into `roles`. A reward alone needs no torch, which is slow to load."""
    if list(names) == ["reward"]:
        from toolwright.trainer.reward_role import RewardRole

        roles["reward"] = RewardRole(role_config, role_config.tools)
        return
    from toolwright.trainer.roles import RoleContext, build_roles

    build_roles(roles, names, RoleContext(role_config, rank), remote_role)
