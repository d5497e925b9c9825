"""Builds the roles of one process. Imports torch only for roles that need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolwright.runtime.host import Rank
from toolwright.trainer.role_config import RemoteRole, RoleConfig


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
