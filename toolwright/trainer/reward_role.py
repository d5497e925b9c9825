"""The reward as a role. It computes nothing with tensors, so that its process need not load torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolwright import tasks as task_sets
from toolwright.rewards import Scorer
from toolwright.runtime.transport import AttemptSummary, TrajectoryTable, unpack
from toolwright.tools.settings import sandbox_in
from toolwright.trainer.role_config import RoleConfig
from toolwright.trajectory import Task, as_groups


def build_scorer(brief: RoleConfig, *, sandbox_url: str | None = None) -> Scorer:
    """`sandbox_url`: of a server that tools here have, to run programs in as well."""
    task_sets.TASKS.get(brief.config.task.name)  # a user's task file may register its scorer
    return Scorer(brief.config.reward, default=brief.scorer, sandbox_url=sandbox_url)


class RewardRole:
    def __init__(self, brief: RoleConfig) -> None:
        self.scorer = build_scorer(brief, sandbox_url=sandbox_in(brief.tools))

    def check(self, tasks: Sequence[Task]) -> None:
        self.scorer.check(tasks)

    async def score(self, parcel: TrajectoryTable) -> list[tuple[float | None, dict[str, float], Any]]:
        """(reward, its parts, failure) of each attempt. A group is judged alone, whatever it came with."""
        attempts = unpack(parcel)
        await asyncio.gather(*(self.scorer.score(group.trajectories) for group in as_groups(attempts)))
        return [(t.reward, t.reward_parts, AttemptSummary.of(t).failure) for t in attempts]

    def close(self) -> None:
        self.scorer.close()
