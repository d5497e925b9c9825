"""The reward role. It computes nothing with tensors, so that its process need not load torch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from toolwright import tasks as task_sets
from toolwright.rewards import Scorer
from toolwright.tools.settings import Settings, sandbox_in
from toolwright.trainer.role_config import RoleConfig
from toolwright.trajectory import Task, Trajectory, as_groups

# The reward, its parts, what each step earned of it, and the failure.
Verdict = tuple[float | None, dict[str, float], list[float], tuple[str, str] | None]


class RewardRole:
    """Scores attempts. `tools`: if one of them has a sandbox, scorers run programs in the same one."""

    def __init__(self, role_config: RoleConfig, tools: Settings) -> None:
        config = role_config.config
        task_sets.TASKS.get(config.task.name)  # a user's task file may register its scorer
        self.scorer = Scorer(config.reward, default=role_config.scorer, sandbox_url=sandbox_in(tools))

    def check(self, tasks: Sequence[Task]) -> None:
        self.scorer.check(tasks)

    async def score(self, attempts: Sequence[Trajectory]) -> list[Verdict]:
        """Score each group by itself. The verdicts are set in the attempts, and returned for callers in other
        processes."""
        await asyncio.gather(*(self.scorer.score(group.trajectories) for group in as_groups(attempts)))
        return [
            (
                t.reward,
                t.reward_parts,
                t.step_rewards,
                (t.failure.kind, t.failure.message) if t.failure else None,
            )
            for t in attempts
        ]

    def close(self) -> None:
        self.scorer.close()
