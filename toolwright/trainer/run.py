"""One run: what surrounds the trainer's steps, from the first line of its log to its report."""

from __future__ import annotations

import gc
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from toolwright.config import schema
from toolwright.config.batch import batch_line, checkpoint_line, rate_line
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.observe.progress import Progress
from toolwright.observe.report import write_report
from toolwright.observe.samples import sample_attempts
from toolwright.observe.summary import closing_table
from toolwright.registry import short_name
from toolwright.runtime.roles import Incident, LearnerLost
from toolwright.runtime.timeline import use
from toolwright.trainer.gap import GapAlarm
from toolwright.trainer.interrupt import Interrupt, StopRequested
from toolwright.trainer.measures import of_sample
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.run_warnings import OutOfTokens, SameRewards
from toolwright.trainer.sampling import SampledStep

if TYPE_CHECKING:
    from toolwright.trainer.loop import TrainingLoop


UNREAD = "nobody reads what this run prints any more; it goes on, and this log has its messages"


@contextmanager
def _lasting() -> Iterator[None]:
    """What is there by now stays, and the collector of cycles need not look through it time and again: with a
    thousand attempts at once that is a quarter of what they take of the host."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def agreement_line(difference: float | None) -> str | None:
    """What a run may promise of its engine's log-probabilities; None where each step's gap tells."""
    if difference is None or math.isinf(difference):
        return None
    if difference == 0:
        return "engine and learner compute the same numbers, to the last bit"
    return (
        f"engine and learner differ by up to {difference:.1g} in a log-probability on this machine: where an "
        "update needs the old ones, the learner computes its own"
    )


class TrainingRun:
    """What surrounds the steps: display, metrics, evaluation, checkpoints, the end."""

    def __init__(self, config: schema.Config, trainer: TrainingLoop, folder: RunFolder) -> None:
        self.config, self.trainer, self.folder = config, trainer, folder
        title = f"{config.algorithm.name} on {config.task.name}"
        self.progress = Progress(config.train.steps, title=title)
        self.progress.stream.gone = lambda: folder.log(UNREAD)
        self.gap = GapAlarm(config.algorithm.correction.alarm, engine=short_name(config.engine.name))
        self.doubts = (SameRewards(config), OutOfTokens(config))
        self.saved = self.exported = -1
        self.saved_at = time.monotonic()  # or since when there was nothing to save
        self.returns: list[int] = []  # to which step, since it was another
        self.untold: list[Incident] = []  # in the metrics: of steps that were not ended

    def go(self, command: Sequence[str]) -> None:
        then = f"go on with: {self._resumption()}"
        writable = self.folder.while_it_can_be_written
        with writable(then=then):
            found = self._resume()
            self.folder.begin(self.config, command=command)
            if found is not None:
                self.folder.rewind(found)
        with self.progress, Interrupt() as interrupt, writable(then=then), _lasting():
            self._announce()
            try:
                self._all_steps(interrupt)
            except StopRequested:
                self._stop(then)
            write_report(self.folder.path)
        self.progress.line(sample_attempts(self.folder.path))
        self.progress.line(closing_table(self.folder.path))
        interrupt.leave()

    def _stop(self, then: str) -> None:
        try:
            self._checkpoint()
            self.trainer.crew.settle()
        except LearnerLost as error:
            raise UserError(f"{error}; what it learned since the last checkpoint is gone; {then}") from None
        self._say(f"stopped at step {self.trainer.step_done}; {then}")

    def _all_steps(self, interrupt: Interrupt) -> None:
        """Back to the last checkpoint whenever what learns is lost, as often as that is allowed."""
        lost: LearnerLost | None = None
        while True:
            try:
                if lost is not None:
                    self._go_back(lost)
                self._steps(interrupt)
                return
            except LearnerLost as error:
                lost = error

    def _go_back(self, lost: LearnerLost) -> None:
        under_way = self.trainer.step_done + 1
        self.untold += self._incidents(under_way)
        found = checkpoints.latest(self.folder.checkpoints)
        most, step = self.config.runtime.learner_restarts, checkpoints.step_of(found) if found else 0
        self.returns = [*self.returns, step] if step in self.returns else [step]
        where = f"the checkpoint of step {step}" if found else "the beginning"
        if len(self.returns) > most:
            raise UserError(
                f"{lost}; it is not tried again from {where} after runtime.learner_restarts={most} times; "
                f"go on with: {self._resumption()}"
            )
        self._say(f"step {under_way}: {lost}; the run goes back to {where}")
        self.trainer.renew()
        restored = self._restore_newest()
        self.saved, self.exported = -1 if restored is None else restored, -1
        self.folder.rewind(restored or -1)

    def _steps(self, interrupt: Interrupt) -> None:
        trainer, last = self.trainer, self.config.train.steps
        if trainer.step_done == 0 and trainer.held_out_tasks:
            with interrupt.safe(trainer.cancel), self.progress.stage("evaluate"):
                metrics = trainer.evaluate()
            self._record(0, {**metrics, **self._timings()})
        while trainer.step_done < last:
            self._step(trainer.step_done + 1, interrupt)
            if self._is_due():
                self._checkpoint()
            interrupt.check()
        self._checkpoint()
        trainer.crew.settle()

    def _is_due(self) -> bool:
        """A checkpoint, by the number of steps or by time: when one is written changes no number."""
        every, minutes = self.config.checkpoint.every, self.config.checkpoint.minutes
        if every and self.trainer.step_done % every == 0:
            return True
        return bool(minutes) and time.monotonic() - self.saved_at >= 60 * minutes

    def _step(self, step: int, interrupt: Interrupt) -> None:
        trainer, started = self.trainer, time.perf_counter()
        before = trainer.order.state()
        try:
            with interrupt.safe(trainer.cancel), self.progress.stage("sample"):
                sampled = trainer.sample(step)
            self._report_failures(step, sampled)
        except StopRequested:
            trainer.order.restore(before)
            raise
        except UserError:
            trainer.order.restore(before)
            self._keep_what_was_learned()
            raise
        metrics = of_sample(sampled)
        if sampled.groups:
            with self.progress.stage("update"):
                metrics.update(trainer.learn(sampled, step))
            metrics["gap/alarm"] = self._watch_gap(step, metrics)
        trainer.step_done = step
        every = self.config.eval.every
        due = step == self.config.train.steps or (every and step % every == 0)
        trouble: UserError | None = None
        if due and trainer.held_out_tasks:
            with self.progress.stage("evaluate"):
                try:
                    metrics.update(trainer.evaluate())
                except UserError as error:
                    trouble = error  # once the step is written down
        with self.progress.stage("record"):
            self.folder.save_rollouts(step, sampled.attempts, trainer.crew.record)
        total = time.perf_counter() - started
        tokens = sum(t.sampled_tokens for t in sampled.attempts)
        metrics["throughput/tokens_per_s"] = tokens / total
        metrics["weights_version"] = trainer.crew.weights_version
        timings = {**self._timings(), "time/score_s": sampled.score_s, "time/total_s": total}
        timings["time/sample_s"] -= sampled.score_s
        self._record(step, {**metrics, **timings, **self._of_runtime(step)})
        if trouble is not None:
            self._keep_what_was_learned()
            raise trouble

    def _keep_what_was_learned(self) -> None:
        """Before the run ends with an error that is not the learner's."""
        if self.trainer.step_done:
            self._checkpoint()
            self.trainer.crew.settle()

    def _of_runtime(self, step: int) -> dict[str, float]:
        """What the crew did and survived in this step, told where it is looked for."""
        events = self.trainer.crew.events()
        self.folder.timeline.append(step, events)
        incidents = [*self.untold, *self._incidents(step)]
        self.untold = []
        return {
            **use(events),
            "runtime/deaths": sum(incident.died for incident in incidents),
            "runtime/resampled": sum(incident.resampled for incident in incidents),
        }

    def _watch_gap(self, step: int, metrics: Mapping[str, float]) -> float:
        warning = self.gap.heard(metrics["gap/abs_mean"])
        if warning:
            self._say(f"step {step}: {warning}")
        return float(bool(warning))

    def _incidents(self, step: int) -> list[Incident]:
        found = self.trainer.crew.incidents()
        for incident in found:
            self.folder.note(step, incident)
            self._say(f"step {step}: {incident.line}")
        return found

    def _report_failures(self, step: int, sampled: SampledStep) -> None:
        messages = sampled.failures
        for message in messages:
            self.folder.log(f"step {step}: {message}")
        if messages:
            self._say(f"step {step}: {len(messages)} attempts failed, first: {messages[0].splitlines()[-1]}")
        if sampled.dropped and not sampled.groups and not sampled.flat:
            raise UserError(
                f"step {step}: no group is complete: all {sampled.dropped} had a failed attempt; "
                f"the first said: {messages[0]}"
            )
        if not sampled.groups:
            self._say(
                f"step {step}: no update: not one of {sampled.flat + sampled.dropped} groups in "
                f"{sampled.rounds} rounds had rewards that differ"
            )
        for warning in filter(None, [doubt.heard(sampled) for doubt in self.doubts]):
            self._say(f"step {step}: {warning}; toolwright view {self.folder.path} shows them")

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
        self._say(f"run folder {self.folder.path}")
        self._say(
            f"model of {trainer.crew.parameters:,} parameters, {len(trainer.train_tasks):,} training tasks, "
            f"{len(trainer.held_out_tasks):,} held out"
        )
        self._say(batch_line(config))
        if agreement := agreement_line(trainer.crew.difference):
            self._say(agreement)
        for line in (*trainer.decided, checkpoint_line(config.checkpoint)):
            self._say(line)
        if warning := rate_line(config, trainer.crew.parameters):
            self._say(warning)
        if trainer.crew.dashboard:
            self._say(f"Ray's dashboard {trainer.crew.dashboard}")
        for kind, skipped in (("training", trainer.skipped_prompts), ("held-out", trainer.skipped_held_out)):
            if skipped:
                limit = f"more than {config.task.max_prompt_tokens:,} tokens (task.max_prompt_tokens)"
                self._say(f"{skipped:,} {kind} prompts are too long and were skipped: {limit}")
        if trainer.step_done:
            self._say(f"going on after step {trainer.step_done}")
        if trainer.step_done >= config.train.steps:
            self._say(f"all {config.train.steps} steps are done; raise train.steps to train further")

    def _checkpoint(self) -> None:
        trainer = self.trainer
        with self.progress.stage("checkpoint"):
            if self.saved != trainer.step_done:
                trainer.save(self.folder.checkpoints, keep=self.config.checkpoint.keep)
            if self.exported != trainer.step_done:
                self.folder.save_model(trainer.crew.export)
        self.saved = self.exported = trainer.step_done
        self.saved_at = time.monotonic()

    def _resume(self) -> int | None:
        """The trainer as its last checkpoint left it; the last step that is to be kept, None in a new run."""
        if not self.config.run.resume:
            return None
        try:
            step = self._restore_newest()
        except LearnerLost as error:
            raise UserError(f"the run could not go on from its checkpoint: {error}") from None
        if step is None:
            return -1  # killed before its first checkpoint: begin again from the same seed
        self.saved = step
        # Step 0 is only an evaluation, and is done again; `model/` may be older than the checkpoint.
        return self.saved or -1

    def _restore_newest(self) -> int | None:
        """The step of the newest whole checkpoint, as which the trainer goes on; None without checkpoints.
        Broken ones are named, and put aside once a whole one is found."""
        broken: list[checkpoints.BrokenCheckpoint] = []
        for path in checkpoints.newest_first(self.folder.checkpoints):
            try:
                self.trainer.restore(path)
            except checkpoints.BrokenCheckpoint as error:
                broken.append(error)
                continue
            for one in broken:
                checkpoints.set_aside(one.path)
                self._say(f"{one}; it is now {one.path.name}.broken, and the run goes on from {path.name}")
            return self.trainer.step_done
        if broken:
            listed = "; ".join(map(str, broken))
            raise UserError(
                f"no checkpoint in {self.folder.checkpoints} is whole: {listed}; "
                "start a new run, or remove them to begin this one again"
            )
        return None

    def _resumption(self) -> str:
        run = self.config.run
        name = self.folder.path.relative_to(run.dir)
        words = ["toolwright", "train", f"run.name={name}", "run.resume=true"]
        if run.dir != schema.RunConfig().dir:
            words.append(f"run.dir={run.dir}")
        return shlex.join(words)
