"""The training loop: sample → score → assign credit → update → publish → record."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from toolwright.agents.rollout import most_turns
from toolwright.algorithms import needs
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.learner.objective import TOGETHER
from toolwright.observe.report import write_report
from toolwright.observe.tracker_config import read_trackers
from toolwright.runtime.reaper import reap_children
from toolwright.runtime.roles import LearnerLost
from toolwright.tasks.order import task_order
from toolwright.trainer.checkpointing import Checkpointer, tasks_digest
from toolwright.trainer.evaluation import held_out, requests_for
from toolwright.trainer.interrupt import Interrupt, StopRequested
from toolwright.trainer.measures import of_sample, tool_use
from toolwright.trainer.preparation import prepare
from toolwright.trainer.replay import from_json, to_json
from toolwright.trainer.roles import start_roles
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.run_log import RunLog
from toolwright.trainer.sampling import GroupSampler, SampledStep
from toolwright.trajectory import as_groups

T = TypeVar("T")


def train(config: schema.Config, *, command: Sequence[str]) -> Path:
    """Run the whole training, from its folder to its report. Returns the folder."""
    folder = RunFolder.claim(config.run, made_of=(config.algorithm.name, config.task.name))
    with reap_children(), closing(TrainingLoop(config)) as trainer:
        for _ in trainer.steps(folder, command=command):
            pass
    return folder.path


@dataclass(frozen=True)
class TrainedStep:
    number: int
    metrics: dict[str, float]  # as metrics.jsonl has them


class TrainingLoop:
    """One run: its tasks, its roles and its steps."""

    def __init__(self, config: schema.Config) -> None:
        read_trackers(config.trackers)
        prepared = prepare(config)
        self.config = config = prepared.role_config.config  # with nothing in it that is `auto`
        self.decided, self.tokenizer = prepared.decided, prepared.tokenizer
        self.step_done = 0
        self.train_tasks, self.skipped_prompts = prepared.train, prepared.skipped
        self.held_out_tasks, self.skipped_held_out = prepared.held_out, prepared.skipped_held_out
        self.order = task_order(config.task.order, self.train_tasks, config.run.seed)
        self._first_order = self.order.state()
        self._running: asyncio.Task[Any] | None = None
        self.folder: RunFolder | None = None
        self.roles = start_roles(prepared.role_config)
        try:
            self.roles.rewards.check([*self.train_tasks, *self.held_out_tasks])
        except BaseException:
            self.roles.close()
            raise
        self.sampler = GroupSampler(
            config,
            self.roles,
            self.train_tasks,
            self.order,
            turns=lambda task: most_turns(config.rollout, prepared.role_config.tools, [task]),
            greedy_baseline=config.algorithm.preference is None
            and "greedy_attempt" in needs.required(config.algorithm.adv_estimator),
        )

    def steps(
        self, folder: RunFolder | None = None, *, command: Sequence[str] = ()
    ) -> Generator[TrainedStep]:
        """Take the remaining steps, and yield each one once it is recorded.

        Everything that surrounds a step is called from here: the log, checkpoints, Ctrl-C, and the return to
        the last checkpoint if the learner is lost. Without a `folder`, the configuration names a new one.
        """
        named_after = (self.config.algorithm.name, self.config.task.name)
        claimed = folder or self.folder or RunFolder.claim(self.config.run, made_of=named_after)
        self.folder, log = claimed, RunLog(self, claimed)
        saver = Checkpointer(self, claimed, log)
        lost: LearnerLost | None = None
        with claimed.explaining_write_errors(then=saver.remedy):
            kept = saver.resume() if self.step_done == 0 else None
            changed = [] if kept is None else claimed.changed_settings(self.config)
            claimed.begin(self.config, command=command, tokenizer=self.tokenizer)
            if kept is not None:
                claimed.rewind(kept)
        with (
            claimed.noting_error(),
            log.progress,
            Interrupt() as interrupt,
            claimed.explaining_write_errors(then=saver.remedy),
            _frozen_for_gc(),
            log.tracked(step=self.step_done),
        ):
            log.announce(changed)
            while True:
                try:
                    if lost is not None:
                        saver.go_back(lost)
                    if self.step_done == 0 and self.held_out_tasks and self.config.eval.at_start:
                        with interrupt.safe(self.cancel), log.stage("evaluate"):
                            metrics = self.evaluate()
                        log.record(0, metrics)
                    while self.step_done < self.config.train.steps:
                        done = self.step(self.step_done + 1, log, saver, interrupt)
                        saver.save_if_due()
                        yield done
                        interrupt.check()
                    saver.save_last()
                    break
                except LearnerLost as error:
                    lost = error
                except (StopRequested, GeneratorExit):  # or a caller has left its loop
                    saver.save_and_stop()
                    break
            write_report(claimed.path)
        log.show_summary()
        interrupt.leave()

    def step(self, number: int, log: RunLog, saver: Checkpointer, interrupt: Interrupt) -> TrainedStep:
        """Take one step, evaluate if it is due, and record it."""
        started, drawn_from = time.perf_counter(), self.sampler.state()
        try:
            with interrupt.safe(self.cancel), log.stage("sample"):
                sampled = self.sample(number)
            sampled_s = time.perf_counter() - started
            log.report_sample(number, sampled)
        except StopRequested:
            self.sampler.restore(*drawn_from)
            raise
        except UserError:
            self.sampler.restore(*drawn_from)
            saver.save_before_error()
            raise
        metrics = of_sample(sampled)
        if self.config.algorithm.preference is not None:  # the labels of the data are nobody's rewards
            metrics = {name: value for name, value in metrics.items() if not name.startswith("reward/")}
        if sampled.groups:
            with log.stage("update"):
                metrics.update(self.learn(sampled, number))
            if "gap/abs_mean" in metrics:  # not where nothing was sampled, or every attempt was masked
                metrics["gap/alarm"] = log.gap_alarm(number, metrics)
        self.step_done = number
        every = self.config.eval.every
        evaluation_error: UserError | None = None
        if self.held_out_tasks and (number == self.config.train.steps or (every and number % every == 0)):
            try:
                with log.stage("evaluate"):
                    metrics.update(self.evaluate())
            except UserError as error:
                evaluation_error = error  # raised once the step is written down
        with log.stage("record"):
            log.folder.save_rollouts(
                number, sampled.attempts, sampled.token_values, self.roles.rollouts.record
            )
            log.folder.keep_rollouts(self.config.checkpoint.keep_attempts)
        total_s = time.perf_counter() - started
        metrics["throughput/tokens_per_s"] = sum(t.sampled_tokens for t in sampled.attempts) / total_s
        metrics["weights_version"] = self.roles.rollouts.weights_version
        metrics.update(tool_use(sampled, sampled_s))
        metrics.update(self.roles.rollouts.cache_use())
        times = {"time/score_s": sampled.score_s, "time/total_s": total_s}
        metrics = log.record(number, {**metrics, **log.runtime_metrics(number)}, times)
        if evaluation_error is not None:
            saver.save_before_error()
            raise evaluation_error
        return TrainedStep(number, metrics)

    def sample(self, step: int) -> SampledStep:
        """Sample the groups that this step learns from, and score each as soon as it is whole."""
        self.roles.begin(step)
        return self._run(self.sampler.step(step))

    def learn(self, sampled: SampledStep, step: int) -> dict[str, float]:
        """Assign credit, update policy and critic, and publish the new weights to every engine."""
        rollouts, learners = self.roles.rollouts, self.roles.learners
        rollouts.rest()
        # What a record has was sampled by weights that are not the learner's any more.
        exact = rollouts.description["exact"] and self.config.rollout.agent != "recorded"
        metrics, sampled.columns = learners.learn(
            sampled.trajectories, step, exact=exact, baselines=sampled.baselines
        )
        if self.config.algorithm.preference is None:
            rollouts.publish(step)
        return metrics

    def evaluate(self) -> dict[str, float]:
        attempt, score = self.roles.rollouts.attempt, self.roles.rewards.score
        if self.config.algorithm.preference is not None:
            requests = requests_for(self.held_out_tasks, TOGETHER, of="held_out", seed=self.config.run.seed)
            groups = as_groups(self._run(attempt(requests)))
            measured = self.roles.learners.measure([t for g in groups if g.complete for t in g.trajectories])
            return {f"held_out/{name}": value for name, value in measured.items()}
        result, _ = self._run(held_out(self.config, self.held_out_tasks, attempt=attempt, score=score))
        if self.folder is not None:
            self.folder.save_evaluation(self.step_done, result)
        return result.metrics()

    def cancel(self) -> None:
        """Interrupt sampling or evaluation. May be called from a signal handler."""
        if self._running is not None:
            self._running.cancel()
            self.roles.loop.get_loop().call_soon_threadsafe(lambda: None)  # it may be asleep

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        # Kept here and not as the task's result: asyncio's Runner asks who handles SIGINT, for which Python
        # 3.11 writes out that task, result and all, and throws the text away. For a step that is seconds.
        result: list[T] = []

        async def cancellable() -> None:
            self._running = asyncio.current_task()
            try:
                result.append(await work)
            finally:
                self._running = None

        self.roles.loop.run(cancellable())
        return result[0]

    def save(self, folder: Path, *, keep: int) -> None:
        """Save all that the next step depends on. Seeds follow from the step's number and need no keeping."""
        order, replay = self.sampler.state()
        own = {
            "step": self.step_done,
            "order": order,
            "replay": to_json(replay),
            "tasks": self.tasks_digest,
            "weights_version": self.roles.rollouts.weights_version,
        }
        self.roles.learners.save(folder, self.step_done, own, keep=keep)

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        plain = checkpoints.plain(path)
        try:
            step, order, tasks, version = (plain[k] for k in ("step", "order", "tasks", "weights_version"))
            self.sampler.restore(order, from_json(plain.get("replay", ())))  # version 0.1 had none
        except (KeyError, TypeError) as error:
            raise checkpoints.BrokenCheckpoint(path, f"{checkpoints.STATE} lacks {error}") from error
        if tasks != self.tasks_digest:
            raise UserError(
                "the checkpoint is of other training tasks: resume with the task settings and files that the "
                "run began with, or start a new run"
            )
        self.roles.learners.restore(path)
        self.roles.rollouts.publish(version)
        self.step_done = step

    def renew(self) -> None:
        """Go back to before the first step, with a new learner in place of the lost one."""
        self.roles.learners.renew()
        self.roles.rollouts.publish(0)
        self.sampler.restore(self._first_order, ())
        self.step_done = 0

    @cached_property
    def tasks_digest(self) -> str:
        return tasks_digest(self.train_tasks)

    @property
    def learner(self) -> Any:
        """The learner, if the run is in this process."""
        return self.roles.host.roles["policy"].learner

    @property
    def engine(self) -> Any:
        """The rollout role's engine, if the run is in this process."""
        return self.roles.host.roles["rollout"].engine

    def close(self) -> None:
        self.roles.close()


@contextmanager
def _frozen_for_gc() -> Iterator[None]:
    """Exempt everything that exists by now from garbage collection.

    With a thousand attempts at once, scanning it would take a quarter of the host's time. Does nothing if the
    application has frozen objects itself, because unfreezing would free those too.
    """
    if gc.get_freeze_count():
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
