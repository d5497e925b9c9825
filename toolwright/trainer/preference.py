"""Runs on preference data: their configuration, and the batches that they learn from.

They use the same loop, roles, checkpoints and metrics as other runs. Instead of sampling, the agent
`recorded` writes the answers of the data. Instead of credit, the answers have labels.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from toolwright.agents.recorded import RecordedAnswers
from toolwright.algorithms import preferences
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.objective import TOGETHER
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import TaskSet
from toolwright.tasks.preferences import ANSWERS, labelled, pairs
from toolwright.tools.settings import Settings
from toolwright.trainer import building
from toolwright.trajectory import Task, Trajectory

if TYPE_CHECKING:
    from toolwright.trainer.learning import Reference


def arranged(config: schema.Config, tasks: TaskSet) -> tuple[schema.Config, TaskSet]:
    """Return tasks with the two answers that the loss compares, and a configuration that writes these and
    samples nothing: the engine is the smallest there is, and on a cluster its workers have no GPU."""
    name = config.algorithm.preference
    assert name is not None
    if not any("chosen" in task.extra_info or "completion" in task.extra_info for task in tasks.train):
        raise UserError(
            f"algorithm.loss={name} learns from compared answers, but task {config.task.name!r} "
            "has none; set task=preferences and task.train=FILE"
        )
    arrange = labelled if preferences.learns_from_labels(name) else pairs
    tasks = replace(tasks, train=arrange(tasks.train), held_out=arrange(tasks.held_out))
    return without_sampling(config, samples=TOGETHER), tasks


def without_sampling(config: schema.Config, *, samples: int) -> schema.Config:
    """Return the configuration with the agent that writes the answers of the data, and the smallest
    engine."""
    if config.runtime.placement.rollout.gpus is None:
        config = config.changed({"runtime.placement.rollout.gpus": 0.0})
    rollout = {"rollout.agent": "recorded", "rollout.samples": samples, "rollout.max_tokens": 1}
    engine, reward = schema.EngineConfig(slots=1), schema.Reward(function="environment")
    return config.changed({**rollout, "engine": engine, "reward": reward})


def lengths(config: schema.Config, tokenizer: Tokenizer, tools: Settings, tasks: Sequence[Task]) -> list[int]:
    """Count the tokens of each task: its prompt and the longest answer."""

    async def written() -> list[int]:
        async with building.agents_before_run(config.rollout, tokenizer, tools) as agents:
            agent = agents.agent("recorded")
            assert isinstance(agent, RecordedAnswers)
            return [
                max([await agent.length(task, index) for index in range(len(task.extra_info[ANSWERS]))])
                for task in tasks
            ]

    return asyncio.run(written())


@dataclass
class PreferenceCredit:
    """The counterpart of `Credit` for compared answers."""

    reference: Reference | None

    def correction(self, *, exact: bool) -> str:
        return "none"

    def assign(
        self,
        trajectories: Sequence[Trajectory],
        *,
        exact: bool,
        baselines: Mapping[str, list[float]],
        kl_coef: float,
    ) -> tuple[Batch, dict[str, float]]:
        """Return the batch with its labels and the reference's log-probabilities."""
        batch = Batch.pack(trajectories)
        del batch.columns["sampled_log_prob"]  # nothing was
        labels = torch.tensor([t.steps[-1].reward or 0.0 for t in trajectories])
        batch.columns["label"] = batch.spread(labels)
        if self.reference is not None:
            batch.columns["ref_log_prob"] = self.reference.statistics(batch)["log_prob"]
        return batch, {}
