"""The loop that joins them all: sample, score, assign credit, update, publish."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from toolwright.agents.rollout import most_turns
from toolwright.algorithms import advantages
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.runtime.reaper import attended
from toolwright.tasks.order import TaskOrder
from toolwright.tools.settings import Settings
from toolwright.trainer.assembly import assembled, prepare
from toolwright.trainer.evaluation import held_out
from toolwright.trainer.run import TrainingRun
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.sampling import GroupSampler, SampledStep

T = TypeVar("T")


class TrainingLoop:
    """The steps that a crew takes together. `tools` are settings of tools; without it, as the configuration
    has them."""

    def __init__(self, config: schema.Config, *, tools: Settings | None = None) -> None:
        prepared = prepare(config, tools)
        self.config = config = prepared.brief.config  # with nothing in it that is `auto`
        self.decided = prepared.decided
        self.step_done = 0
        self.train_tasks, self.skipped_prompts = prepared.train, prepared.skipped
        self.held_out_tasks, self.skipped_held_out = prepared.held_out, prepared.skipped_held_out
        self.order = TaskOrder(len(self.train_tasks), config.run.seed, config.task.shuffle)
        self._first = self.order.state()
        self._running: asyncio.Task[Any] | None = None
        self.crew = assembled(prepared.brief)
        try:
            self.crew.check([*self.train_tasks, *self.held_out_tasks])
        except BaseException:
            self.crew.close()
            raise
        self.sampler = GroupSampler(
            config,
            self.crew,
            self.train_tasks,
            self.order,
            turns=lambda task: most_turns(config.rollout, prepared.brief.tools, [task]),
            greedy_baseline="reward_baseline" in advantages.needs(config.algorithm.adv_estimator),
        )

    def sample(self, step: int) -> SampledStep:
        """The groups that this step learns from. Only the order of tasks changes."""
        self.crew.begin(step)
        return self._run(self.sampler.step(step))

    def evaluate(self) -> dict[str, float]:
        crew = self.crew
        result, _ = self._run(
            held_out(self.config, self.held_out_tasks, attempt=crew.attempt, score=crew.score)
        )
        return result

    def cancel(self) -> None:
        """End sampling or evaluation where it waits. May be called from a signal's handler."""
        if self._running is not None:
            self._running.cancel()
            self.crew.loop.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # Kept here and not as the task's result: asyncio's Runner asks who handles SIGINT, for which Python
        # 3.11 writes out that task, result and all, and throws the text away. For a step that is seconds.
        result: list[T] = []

        async def noted() -> None:
            self._running = asyncio.current_task()
            try:
                result.append(await work)
            finally:
                self._running = None

        self.crew.loop.run(noted())
        return result[0]

    def learn(self, sampled: SampledStep, step: int) -> dict[str, float]:
        """One step's updates, then the engines have the new weights."""
        return self.crew.learn(sampled.trajectories, step, baselines=sampled.baselines)

    def save(self, folder: Path, *, keep: int) -> None:
        """All that the next step depends on. Seeds need no keeping: they follow from the step's number."""
        own = {
            "step": self.step_done,
            "order": self.order.state(),
            "tasks": self.tasks_digest,
            "weights_version": self.crew.weights_version,
        }
        self.crew.save(folder, self.step_done, own, keep=keep)

    @cached_property
    def tasks_digest(self) -> str:
        """Tells whether two runs have the same training tasks."""
        known = [[task.id, task.prompt, task.ground_truth, task.extra_info] for task in self.train_tasks]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()

    def restore(self, path: Path) -> None:
        """As a checkpoint has it."""
        plain = checkpoints.plain(path)
        try:
            step, order, tasks, version = (plain[k] for k in ("step", "order", "tasks", "weights_version"))
            self.order.restore(order)
        except (KeyError, TypeError) as error:
            raise checkpoints.BrokenCheckpoint(path, f"{checkpoints.STATE} lacks {error}") from error
        if tasks != self.tasks_digest:
            raise UserError(
                "the checkpoint is of other training tasks: resume with the task settings and files that the "
                "run began with, or start a new run"
            )
        self.crew.restore(path, version=version)
        self.step_done = step

    def renew(self) -> None:
        """As before the first step, with a new learner in place of one that was lost."""
        self.crew.renew()
        self.order.restore(self._first)
        self.step_done = 0

    @property
    def learner(self) -> Any:
        """Of a crew in this process."""
        return self.crew.learner  # type: ignore[attr-defined]

    @property
    def engine(self) -> Any:
        """Of a crew in this process."""
        return self.crew.engine  # type: ignore[attr-defined]

    def close(self) -> None:
        self.crew.close()


def train(config: schema.Config, *, command: Sequence[str]) -> Path:
    """A whole run, from its folder to its report. Returns the folder."""
    folder = RunFolder.claim(config.run, made_of=(config.algorithm.name, config.task.name))
    with attended():
        trainer = TrainingLoop(config)
        try:
            TrainingRun(trainer.config, trainer, folder).go(command)
        finally:
            trainer.close()
    return folder.path
