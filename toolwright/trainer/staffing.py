"""The roles of one process of a cluster, with no more loaded than they need: torch takes seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolwright.runtime.host import Rank
from toolwright.trainer.brief import Brief, Colleagues


def staffed(names: Sequence[str], brief: Brief, colleagues: Colleagues, rank: Rank) -> dict[str, Any]:
    if list(names) == ["reward"]:
        from toolwright.trainer.reward_role import RewardRole

        return {"reward": RewardRole(brief)}
    from toolwright.trainer.members import members

    return members(names, brief, colleagues, rank)
