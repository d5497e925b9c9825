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
from toolwright.algorithms import advantages, kl
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.critic import Critic
from toolwright.learner.minibatches import minibatches
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Frozen, Policy
from toolwright.rewards import Scorer
from toolwright.tasks.order import TaskOrder
from toolwright.tools.settings import Settings, served, settings_of
from toolwright.trainer import roles
from toolwright.trainer.credit import Credit
from toolwright.trainer.evaluation import held_out
from toolwright.trainer.measures import of_gap, of_updates
from toolwright.trainer.rehearsal import rehearse
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
        self.skips = 0
        tasks = task_sets.load(config.task, seed=config.run.seed)
        decoder, self.tokenizer = roles.build_model(config.model, tasks.alphabet, seed=config.run.seed)
        roles.use_processor(config.run, decoder)
        limit = min(config.task.max_prompt_tokens, decoder.shape.context - 1)
        self.train_tasks = roles.fitting(list(tasks.train), config.task, self.tokenizer, limit=limit)
        self.held_out_tasks = roles.fitting(list(tasks.held_out), config.task, self.tokenizer, limit=limit)
        self.skipped_prompts = len(tasks.train) - len(self.train_tasks)
        self.skipped_held_out = len(tasks.held_out) - len(self.held_out_tasks)
        self.engine = roles.build_engine(config, decoder, self.tokenizer)
        tools = settings_of(config) if tools is None else tools
        self.rollout = Rollout(config.rollout, self.engine, self.tokenizer, tools=tools)
        self.order = TaskOrder(len(self.train_tasks), config.run.seed, config.task.shuffle)
        self._build_learner(decoder)
        rehearse(config, self.credit, self.objective)
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
            greedy_baseline="reward_baseline" in self.credit.needs,
        )

    def _build_learner(self, decoder: Any) -> None:
        config, update = self.config, self.config.update
        algorithm = config.algorithm
        needs = advantages.needs(algorithm.adv_estimator)
        updates = config.train.steps * update.epochs * update.minibatches
        dtype = roles.DTYPES[config.model.dtype]
        self.policy = Policy(
            decoder,
            update.policy,
            total_updates=updates,
            temperature=config.rollout.temperature,
            micro_tokens=update.micro_tokens,
            dtype=dtype,
        )
        # A reference that nothing asks is not kept: the policy itself would be as good until it moves.
        wanted = algorithm.kl.where != "none" or "reference" in needs
        self.reference = Frozen.copy_of(self.policy) if wanted else None
        self.critic = None
        if "values" in needs:
            self.critic = Critic(
                decoder,
                update.critic,
                total_updates=updates,
                micro_tokens=update.micro_tokens,
                clip=algorithm.clip_value,
                dtype=dtype,
            )
        limit = config.rollout.max_tokens * self.rollout.turns(self.train_tasks)
        self.objective = Objective(algorithm, norm_tokens=limit)
        self.credit = Credit(config, self.policy, self.reference, self.critic)

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
        """Advantages, then epochs × minibatches of updates, then the engines hear of the new weights."""
        config, update = self.config, self.config.update
        batch, metrics = self.credit.assign(
            sampled.trajectories,
            exact=self.engine.exact,
            baselines=sampled.baselines,
            kl_coef=self.objective.kl_coef,
        )
        rows: list[dict[str, float]] = []
        critic_rows: list[dict[str, float]] = []
        for epoch in range(update.epochs):
            parts = minibatches(batch, update.minibatches, seed=config.run.seed, step=step, epoch=epoch)
            for part in parts:
                if self.critic is not None:
                    critic_rows.append(self.critic.update(part))
                if self.critic is None or step > update.critic_warmup:
                    rows.append(self.policy.update(part, self.objective))
        metrics.update(of_updates("policy", rows))
        metrics.update(of_updates("critic", critic_rows))
        # The weights had not moved yet at the first update: what differs there is the engine's gap.
        if rows:
            metrics.update({key: value for key, value in rows[0].items() if key.startswith("gap/")})
            self._adapt_kl(metrics, len(batch))
        else:
            metrics.update(of_gap(batch, self.policy.statistics(batch)["log_prob"]))
        self._count_skips(rows)
        self.engine.publish(step)
        return metrics

    def _adapt_kl(self, metrics: dict[str, float], trajectories: int) -> None:
        config = self.config.algorithm.kl
        if config.where == "none":
            return
        if "policy/reference_kl" in metrics:
            metrics["reference/kl"] = metrics.pop("policy/reference_kl")
        metrics["reference/kl_coef"] = self.objective.kl_coef
        if config.target is not None:
            self.objective.kl_coef = kl.adapt(
                self.objective.kl_coef,
                observed=metrics["reference/kl"],
                target=config.target,
                horizon=config.horizon,
                trajectories=trajectories,
            )

    def _count_skips(self, rows: Sequence[dict[str, float]]) -> None:
        """A bad gradient now and then is survived; one after the other means the run is broken."""
        for row in rows:
            self.skips = self.skips + 1 if row["skipped"] else 0
        if self.skips >= self.config.train.max_skips:
            raise UserError(
                f"{self.skips} updates in a row had a gradient that is not finite, and were skipped; "
                "lower update.policy.lr, or look at the rewards and the engine's gap in metrics.jsonl"
            )

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """All that the next step depends on. Seeds need no keeping: they follow from the step's number."""
        plain = {
            "step": self.step_done,
            "order": self.order.state(),
            "tasks": self.tasks_digest,
            "kl_coef": self.objective.kl_coef,
            "skips": self.skips,
            "weights_version": self.engine.weights_version,
        }
        tensors = {"policy": self.policy.state_dict()}
        if self.critic is not None:
            tensors["critic"] = self.critic.state_dict()
        if self.reference is not None:
            tensors["reference"] = self.reference.decoder.state_dict()
        return plain, tensors

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
        try:
            self.policy.load_state_dict(tensors["policy"])
            if self.critic is not None:
                self.critic.load_state_dict(tensors["critic"])
            if self.reference is not None:
                self.reference.decoder.load_state_dict(tensors["reference"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the checkpoint is of another model or algorithm ({reason}): resume with those that the run "
                "began with, or start a new run"
            ) from None
        self.objective.kl_coef = plain["kl_coef"]
        self.skips, self.step_done = plain["skips"], plain["step"]
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
