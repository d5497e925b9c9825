"""The loop that joins them all: sample, score, assign credit, update, publish."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Coroutine, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from toolwright import tasks as task_sets
from toolwright.agents.rollout import Rollout
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tasks.order import TaskOrder
from toolwright.tools.settings import Settings, served, settings_of
from toolwright.trainer import roles
from toolwright.trainer.evaluation import held_out
from toolwright.trainer.learning import Learner
from toolwright.trainer.run import Run
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.sampling import GroupSampler, Sampled

T = TypeVar("T")


class Trainer:
    """All roles of one run in this process, and the steps they take together. `tools` are settings of
    tools whose servers run; without it, as the configuration has them."""

    def __init__(self, config: schema.Config, *, tools: Settings | None = None) -> None:
        self.config = config
        self.step_done = 0
        tasks = task_sets.load(config.task, seed=config.run.seed)
        tools = settings_of(config) if tools is None else tools
        alphabet = roles.alphabet(tasks, tools)
        decoder, self.tokenizer = roles.build_model(config.model, alphabet, seed=config.run.seed)
        roles.use_processor(config.run, decoder)
        limit = min(config.task.max_prompt_tokens, decoder.shape.context - 1)
        self.train_tasks = roles.fitting(list(tasks.train), config.task, self.tokenizer, limit=limit)
        self.held_out_tasks = roles.fitting(list(tasks.held_out), config.task, self.tokenizer, limit=limit)
        self.skipped_prompts = len(tasks.train) - len(self.train_tasks)
        self.skipped_held_out = len(tasks.held_out) - len(self.held_out_tasks)
        self.engine = roles.build_engine(config, decoder, self.tokenizer)
        self.rollout = Rollout(config.rollout, self.engine, self.tokenizer, tools=tools)
        self.order = TaskOrder(len(self.train_tasks), config.run.seed, config.task.shuffle)
        self.learner = Learner(config, decoder, max_turns=self.rollout.turns(self.train_tasks))
        self.loop = asyncio.Runner()
        self._running: asyncio.Task[Any] | None = None
        self.scorer = Scorer(config.reward, default=tasks.scorer)  # last: it may be a process of its own
        try:
            self.scorer.check([*self.train_tasks, *self.held_out_tasks])
        except BaseException:
            self.scorer.close()
            raise
        self.sampler = GroupSampler(
            config,
            self.rollout,
            self.scorer,
            self.train_tasks,
            self.order,
            greedy_baseline="reward_baseline" in self.learner.credit.needs,
        )

    def sample(self, step: int) -> Sampled:
        """The groups that this step learns from. Only the order of tasks changes."""
        return self._run(self.sampler.step(step))

    def evaluate(self) -> dict[str, float]:
        result, _ = self._run(held_out(self.config, self.rollout, self.scorer, self.held_out_tasks))
        return result

    def cancel(self) -> None:
        """End sampling or evaluation where it waits. May be called from a signal's handler."""
        if self._running is not None:
            self._running.cancel()
            self.loop.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def noted() -> T:
            self._running = asyncio.current_task()
            try:
                return await work
            finally:
                self._running = None

        return self.loop.run(noted())

    def learn(self, sampled: Sampled, step: int) -> dict[str, float]:
        """One step's updates, then the engines hear of the new weights."""
        metrics = self.learner.learn(
            sampled.trajectories, step, exact=self.engine.exact, baselines=sampled.baselines
        )
        self.engine.publish(step)
        return metrics

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that the next step depends on. Seeds need no keeping: they follow from the step's number."""
        plain, tensors = self.learner.state()
        own = {
            "step": self.step_done,
            "order": self.order.state(),
            "tasks": self.tasks_digest,
            "weights_version": self.engine.weights_version,
        }
        return {**plain, **own}, tensors

    @cached_property
    def tasks_digest(self) -> str:
        """Tells whether two runs have the same training tasks."""
        known = [[task.id, task.prompt, task.ground_truth, task.extra_info] for task in self.train_tasks]
        return hashlib.blake2b(json.dumps(known).encode(), digest_size=8).hexdigest()

    def restore(self, plain: dict[str, Any], tensors: dict[str, Any]) -> None:
        self.order.restore(plain["order"])
        if plain["tasks"] != self.tasks_digest:
            raise UserError(
                "the checkpoint is of other training tasks: resume with the task settings and files that the "
                "run began with, or start a new run"
            )
        self.learner.restore(plain, tensors)
        self.step_done = plain["step"]
        self.engine.publish(plain["weights_version"])

    def close(self) -> None:
        self.scorer.close()  # first: the loop would wait for a score that hangs
        self.loop.run(self.rollout.close())
        self.loop.run(self.engine.close())
        self.loop.close()


def train(config: schema.Config, *, command: Sequence[str]) -> Path:
    """A whole run, from its folder to its report. Returns the folder."""
    folder = RunFolder.claim(config.run, made_of=(config.algorithm.name, config.task.name))
    with served(settings_of(config)) as tools:
        trainer = Trainer(config, tools=tools)
        try:
            Run(config, trainer, folder).go(command)
        finally:
            trainer.close()
    return folder.path
