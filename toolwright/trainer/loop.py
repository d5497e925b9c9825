"""The loop that joins them all: sample, score, assign credit, update, publish."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolwright import tasks as task_sets
from toolwright.agents.rollout import Rollout
from toolwright.algorithms import advantages, kl
from toolwright.config import schema
from toolwright.config.batch import batch_line
from toolwright.failures import UserError
from toolwright.learner.critic import Critic
from toolwright.learner.minibatches import minibatches
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Frozen, Policy
from toolwright.observe.progress import Progress
from toolwright.observe.report import write_report
from toolwright.observe.summary import closing_table
from toolwright.rewards import Scorer
from toolwright.tasks.order import TaskOrder
from toolwright.trainer import checkpoints, roles
from toolwright.trainer.credit import Credit
from toolwright.trainer.evaluation import held_out
from toolwright.trainer.interrupt import Interrupt, Stopped
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.sampling import GroupSampler, Sampled


class Trainer:
    """All roles of one run in this process, and the steps they take together."""

    def __init__(self, config: schema.Config) -> None:
        self.config = config
        roles.use_threads(config.run)
        tasks = task_sets.load(config.task, seed=config.run.seed)
        decoder, self.tokenizer = roles.build_model(config.model, tasks.alphabet, seed=config.run.seed)
        limit = min(config.task.max_prompt_tokens, decoder.shape.context - 1)
        self.train_tasks = roles.fitting(list(tasks.train), config.task, self.tokenizer, limit=limit)
        self.held_out_tasks = roles.fitting(list(tasks.held_out), config.task, self.tokenizer, limit=limit)
        self.skipped_prompts = len(tasks.train) - len(self.train_tasks)
        self.scorer = Scorer(config.reward, default=tasks.scorer)
        self.scorer.check([*self.train_tasks, *self.held_out_tasks])
        self.engine = roles.build_engine(config, decoder, self.tokenizer)
        self.rollout = Rollout(config.rollout, self.engine, self.tokenizer)
        self.order = TaskOrder(len(self.train_tasks), config.run.seed, config.task.shuffle)
        self._build_learner(decoder)
        self.sampler = GroupSampler(
            config,
            self.rollout,
            self.scorer,
            self.train_tasks,
            self.order,
            greedy_baseline="reward_baseline" in self.credit.needs,
        )
        self.step_done = 0
        self.skips = 0
        self.loop = asyncio.Runner()

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
        turns = 1 if config.rollout.agent == "single_turn" else config.rollout.max_turns
        limit = config.rollout.max_tokens * turns
        self.objective = Objective(algorithm, norm_tokens=limit)
        self.credit = Credit(config, self.policy, self.reference, self.critic)

    def sample(self, step: int) -> Sampled:
        """The groups that this step learns from. Only the order of tasks changes."""
        return self.loop.run(self.sampler.step(step))

    def evaluate(self) -> dict[str, float]:
        result, _ = self.loop.run(held_out(self.config, self.rollout, self.scorer, self.held_out_tasks))
        return result

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
        metrics.update(_summary("policy", rows))
        metrics.update(_summary("critic", critic_rows))
        if rows:  # the weights had not moved yet at the first update: what differs there is the engine's gap
            metrics.update({key: value for key, value in rows[0].items() if key.startswith("gap/")})
            self._adapt_kl(metrics, len(batch))
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

    def restore(self, plain: dict[str, Any], tensors: dict[str, Any]) -> None:
        try:
            self.policy.load_state_dict(tensors["policy"])
            if self.critic is not None:
                self.critic.load_state_dict(tensors["critic"])
            if self.reference is not None:
                self.reference.decoder.load_state_dict(tensors["reference"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise UserError(f"the checkpoint is of another model or algorithm: {error}") from None
        self.order.restore(plain["order"])
        self.objective.kl_coef = plain["kl_coef"]
        self.skips, self.step_done = plain["skips"], plain["step"]
        self.engine.publish(plain["weights_version"])

    def close(self) -> None:
        self.loop.run(self.engine.close())
        self.loop.close()
        self.scorer.close()


def train(config: schema.Config, *, command: Sequence[str]) -> Path:
    """A whole run, from its folder to its report. Returns the folder."""
    folder = RunFolder.claim(config.run, default_name=f"{config.algorithm.name}-{config.task.name}")
    trainer = Trainer(config)
    try:
        folder.begin(config, command=command)
        _Run(config, trainer, folder).go()
    finally:
        trainer.close()
    return folder.path


class _Run:
    """What surrounds the steps: display, metrics, evaluation, checkpoints, the end."""

    def __init__(self, config: schema.Config, trainer: Trainer, folder: RunFolder) -> None:
        self.config, self.trainer, self.folder = config, trainer, folder
        title = f"{config.algorithm.name} on {config.task.name}"
        self.progress = Progress(config.train.steps, title=title)
        self.saved = -1

    def go(self) -> None:
        self._resume()
        with self.progress, Interrupt() as interrupt:
            self._announce()
            try:
                self._steps(interrupt)
            except Stopped:
                self._checkpoint()
                self._say(
                    f"stopped at step {self.trainer.step_done}; go on with: "
                    f"toolwright train run.name={self.folder.path.name} run.resume=true"
                )
        write_report(self.folder.path)
        print(closing_table(self.folder.path))

    def _steps(self, interrupt: Interrupt) -> None:
        trainer, last = self.trainer, self.config.train.steps
        if trainer.step_done == 0 and trainer.held_out_tasks:
            with interrupt.safe(), self.progress.stage("evaluate"):
                metrics = trainer.evaluate()
            self._record(0, {**metrics, **self._timings()})
        while trainer.step_done < last:
            self._step(trainer.step_done + 1, interrupt)
            every = self.config.checkpoint.every
            if every and trainer.step_done % every == 0:
                self._checkpoint()
            interrupt.check()
        self._checkpoint()

    def _step(self, step: int, interrupt: Interrupt) -> None:
        trainer, started = self.trainer, time.perf_counter()
        before = trainer.order.state()
        try:
            with interrupt.safe(), self.progress.stage("sample"):
                sampled = trainer.sample(step)
        except Stopped:
            trainer.order.restore(before)
            raise
        self._report_failures(step, sampled)
        metrics = _of_sample(sampled)
        if sampled.groups:
            with self.progress.stage("update"):
                metrics.update(trainer.learn(sampled, step))
        trainer.step_done = step
        every = self.config.eval.every
        due = step == self.config.train.steps or (every and step % every == 0)
        if due and trainer.held_out_tasks:
            with self.progress.stage("evaluate"):
                metrics.update(trainer.evaluate())
        with self.progress.stage("record"):
            self.folder.save_rollouts(step, sampled.attempts)
        total = time.perf_counter() - started
        tokens = sum(t.sampled_tokens for t in sampled.attempts)
        metrics["throughput/tokens_per_s"] = tokens / total
        metrics["weights_version"] = trainer.engine.weights_version
        timings = {**self._timings(), "time/score_s": sampled.score_s, "time/total_s": total}
        timings["time/sample_s"] -= sampled.score_s
        self._record(step, {**metrics, **timings})

    def _report_failures(self, step: int, sampled: Sampled) -> None:
        messages = sampled.failures
        for message in messages:
            self.folder.log(f"step {step}: {message}")
        if messages:
            self._say(f"step {step}: {len(messages)} attempts failed, first: {messages[0].splitlines()[-1]}")
        if sampled.dropped and not sampled.groups and not sampled.flat:
            raise UserError(
                f"step {step}: no group is complete: all {sampled.dropped} had a failed attempt; "
                f"the first said: {messages[0] if messages else 'nothing'}"
            )

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        self.folder.metrics.append(step, metrics)
        self.progress.step(step, metrics)

    def _timings(self) -> dict[str, float]:
        return {f"time/{stage}_s": seconds for stage, seconds in self.progress.timings.items()}

    def _say(self, text: str) -> None:
        self.progress.line(text)
        self.folder.log(text)

    def _announce(self) -> None:
        trainer, config = self.trainer, self.config
        size = sum(p.numel() for p in trainer.policy.decoder.parameters())
        self._say(f"run folder {self.folder.path}")
        self._say(
            f"model of {size:,} parameters, {len(trainer.train_tasks):,} training tasks, "
            f"{len(trainer.held_out_tasks):,} held out"
        )
        self._say(batch_line(config))
        if trainer.skipped_prompts:
            self._say(f"{trainer.skipped_prompts:,} training prompts are too long and were skipped")

    def _checkpoint(self) -> None:
        trainer = self.trainer
        if self.saved == trainer.step_done:
            return
        with self.progress.stage("checkpoint"):
            plain, tensors = trainer.state()
            keep = self.config.checkpoint.keep
            checkpoints.save(self.folder.checkpoints, trainer.step_done, plain, tensors, keep=keep)
            self.folder.save_model(trainer.policy.decoder, trainer.tokenizer)
        self.saved = trainer.step_done

    def _resume(self) -> None:
        if not self.config.run.resume:
            return
        found = checkpoints.latest(self.folder.checkpoints)
        if found is None:
            self.folder.rewind(-1)  # killed before its first checkpoint: begin again from the same seed
            return
        plain, tensors = checkpoints.load(found)
        self.trainer.restore(plain, tensors)
        self.folder.rewind(plain["step"])
        self.saved = plain["step"]


def _of_sample(sampled: Sampled) -> dict[str, float]:
    """What there is to know about what was sampled."""
    attempts = [t for t in sampled.attempts if t.failure is None]
    metrics: dict[str, float] = {
        "attempts/failed": sampled.failed,
        "groups/kept": len(sampled.groups),
        "groups/dropped": sampled.dropped,
        "groups/flat": sampled.flat,
        "groups/rounds": sampled.rounds,
    }
    if not attempts:
        return metrics
    rewards = [t.reward or 0.0 for t in attempts]
    tokens = [t.sampled_tokens for t in attempts]
    metrics.update(
        {
            "reward/mean": statistics.fmean(rewards),
            "reward/std": statistics.pstdev(rewards),
            "reward/min": min(rewards),
            "reward/max": max(rewards),
            "response/tokens_mean": statistics.fmean(tokens),
            "response/tokens_max": max(tokens),
            "response/truncated": statistics.fmean(t.stop == "length" for t in attempts),
            "turns/mean": statistics.fmean(len(t.steps) for t in attempts),
        }
    )
    for part in sorted({name for t in attempts for name in t.reward_parts}):
        metrics[f"reward/{part}"] = statistics.fmean(t.reward_parts.get(part, 0.0) for t in attempts)
    for count in sorted({name for t in attempts for name in t.counts}):
        metrics[f"attempts/{count}"] = statistics.fmean(t.counts.get(count, 0) for t in attempts)
    return metrics


def _summary(role: str, rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """The mean over a step's updates; skipped ones are counted instead."""
    if not rows:
        return {}
    names = [name for name in rows[0] if not name.startswith("gap/")]
    means = {f"{role}/{name}": statistics.fmean(row[name] for row in rows) for name in names}
    return {**means, f"{role}/skipped": sum(row["skipped"] for row in rows), f"{role}/lr": rows[-1]["lr"]}
