"""The log of a run: it prints and records each step in display, metrics, timeline, incidents and rollouts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from toolwright.config.batch import batch_line, checkpoint_line, ranks_line
from toolwright.failures import UserError
from toolwright.observe.summary import closing_table, sample_attempts
from toolwright.registry import short_name
from toolwright.runtime.roles import Incident
from toolwright.runtime.timeline import use
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.run_warnings import EntropyCollapse, GapAlarm, NoToolCalls, OutOfTokens, SameRewards
from toolwright.trainer.sampling import SampledStep
from toolwright.trainer.step_log import StepLog

if TYPE_CHECKING:
    from toolwright.trainer.loop import TrainingLoop


class RunLog(StepLog):
    """The log of `toolwright train`, with its roles' incidents and its warnings."""

    def __init__(self, trainer: TrainingLoop, folder: RunFolder) -> None:
        self.trainer, self.config = trainer, trainer.config
        config = self.config
        title = f"{config.algorithm.name} on {config.task.name}"
        super().__init__(config, folder, command="train", title=title, steps=config.train.steps)
        # The policy is meant to leave the one that a record was sampled from: that is no engine's fault.
        limit = math.inf if config.rollout.agent == "recorded" else config.algorithm.correction.alarm
        self.gap = GapAlarm(limit, engine=short_name(config.engine.name))
        rewarded = config.algorithm.preference is None and config.algorithm.teacher is None
        self.warnings = (SameRewards(config), OutOfTokens(config), NoToolCalls(config)) if rewarded else ()
        self.entropy = EntropyCollapse()
        self.uncounted: list[Incident] = []  # of steps that a lost learner cut short

    def announce(self, changed: Sequence[str] = ()) -> None:
        """Print what is about to run, and which settings of a resumed run have changed."""
        trainer, config, roles = self.trainer, self.config, self.trainer.roles
        parameters = roles.learners.parameters
        self.say(f"run folder {self.folder.path}")
        self.say(
            f"model of {parameters:,} parameters, {len(trainer.train_tasks):,} training tasks, "
            f"{len(trainer.held_out_tasks):,} held out"
        )
        for line in filter(None, (batch_line(config), ranks_line(config.runtime))):
            self.say(line)
        samples = config.algorithm.preference is None
        if samples and (agreement := agreement_line(roles.rollouts.description["difference"])):
            self.say(agreement)
        for line in (*trainer.decided, checkpoint_line(config.checkpoint)):
            self.say(line)
        if roles.dashboard:
            self.say(f"Ray's dashboard {roles.dashboard}")
        for kind, skipped in (("training", trainer.skipped_prompts), ("held-out", trainer.skipped_held_out)):
            if skipped:
                limit = f"more than {config.task.max_prompt_tokens:,} tokens (task.max_prompt_tokens)"
                if not samples:
                    limit = f"more than {config.model.context:,} tokens with their answers (model.context)"
                self.say(f"{skipped:,} {kind} prompts are too long and were skipped: {limit}")
        if trainer.step_done:
            self.say(f"going on after step {trainer.step_done}")
        if changed:
            self.say(f"settings that differ from before: {', '.join(changed)}")
        if trainer.step_done >= config.train.steps:
            self.say(f"all {config.train.steps} steps are done; raise train.steps to train further")

    def report_sample(self, step: int, sampled: SampledStep) -> None:
        """Log failed attempts and warn if the run cannot learn. Raises a UserError if no group is
        complete."""
        messages = sampled.failures
        for message in messages:
            self.folder.log(f"step {step}: {message}")
        if messages:
            self.say(f"step {step}: {len(messages)} attempts failed, first: {messages[0].splitlines()[-1]}")
        if sampled.dropped and not sampled.groups and not sampled.flat:
            raise UserError(
                f"step {step}: no group is complete: all {sampled.dropped} had a failed attempt; "
                f"the first said: {messages[0]}"
            )
        if not sampled.groups:
            self.say(
                f"step {step}: no update: not one of {sampled.flat + sampled.dropped} groups in "
                f"{sampled.rounds} rounds had attempts that differ"
            )
        for text in filter(None, [warning.check(sampled) for warning in self.warnings]):
            self.say(f"step {step}: {text}; toolwright view {shlex.quote(str(self.folder.path))} shows them")

    def gap_alarm(self, step: int, metrics: Mapping[str, float]) -> float:
        """Return 1.0, with a warning, if the log-probabilities of engine and learner are too far apart."""
        warning = self.gap.warning(metrics["gap/abs_mean"])
        if warning:
            self.say(f"step {step}: {warning}")
        return float(bool(warning))

    def record(
        self, step: int, metrics: Mapping[str, float], times: Mapping[str, float] | None = None
    ) -> dict[str, float]:
        """Write a step's metrics with the time of each stage, and show them. Returns all metrics."""
        timings = {f"time/{stage}_s": seconds for stage, seconds in self.progress.timings.items()}
        if times:  # the stage of sampling includes the wait for the last scores
            timings["time/sample_s"] -= times["time/score_s"]
        row = {**metrics, **timings, **(times or {})}
        self.write(step, row)
        if warning := self.entropy.check(row):
            self.say(f"step {step}: {warning}")
        return row

    def runtime_metrics(self, step: int) -> dict[str, float]:
        """Return the roles' metrics for this step. Details are in timeline.json and incidents.jsonl."""
        events = self.trainer.roles.events()
        self.folder.timeline.append(step, events)
        incidents = [*self.uncounted, *self._incidents(step)]
        self.uncounted = []
        return {
            **use(events),
            "runtime/deaths": sum(incident.died for incident in incidents),
            "runtime/resampled": sum(incident.resampled for incident in incidents),
        }

    def note_lost_step(self, step: int) -> None:
        """Log the incidents of a step that did not finish. The next step that finishes counts them."""
        self.uncounted += self._incidents(step)

    def _incidents(self, step: int) -> list[Incident]:
        found = self.trainer.roles.incidents()
        for incident in found:
            self.folder.note(step, incident)
            self.say(f"step {step}: {incident.line}")
        return found

    def show_summary(self) -> None:
        self.progress.line(sample_attempts(self.folder.path))
        self.progress.line(closing_table(self.folder.path))


def agreement_line(difference: float | None) -> str | None:
    """Describe how far engine and learner agree. None if only the gap of each step can tell."""
    if difference is None or math.isinf(difference):
        return None
    if difference == 0:
        return "engine and learner compute the same numbers, to the last bit"
    return (
        f"engine and learner differ by up to {difference:.1g} in a log-probability on this machine: where an "
        "update needs the old ones, the learner computes its own"
    )
