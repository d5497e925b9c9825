"""The roles of one process of a cluster, with no more loaded than they need: torch takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolwright.runtime.host import Rank
from toolwright.trainer.role_config import Colleagues, RoleConfig


def staffed(names: Sequence[str], brief: RoleConfig, colleagues: Colleagues, rank: Rank) -> dict[str, Any]:
    if list(names) == ["reward"]:
        from toolwright.trainer.reward_role import RewardRole

        return {"reward": RewardRole(brief)}
    from toolwright.trainer.members import members

    return members(names, brief, colleagues, rank)
