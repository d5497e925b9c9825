"""Checkpoints of a run: when they are written, and how a run goes on from one after a stop or a loss."""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.runtime.roles import LearnerLost
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.run_log import RunLog
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from toolwright.trainer.loop import TrainingLoop


class Checkpointer:
    """Saves the trainer into its run folder and restores it from there."""

    def __init__(self, trainer: TrainingLoop, folder: RunFolder, log: RunLog) -> None:
        self.trainer, self.folder, self.log = trainer, folder, log
        self.config = trainer.config
        self.saved_step = self.exported_step = -1
        self.saved_at = time.monotonic()  # or since when there was nothing to save
        self.returns: list[int] = []  # the step of each return, since it was another

    @property
    def remedy(self) -> str:
        return f"continue with: {resume_command(self.config.run, self.folder)}"

    def save_if_due(self) -> None:
        """Save after the configured number of steps or minutes. When a run saves never changes its
        numbers."""
        if is_due(self.config.checkpoint, self.trainer.step_done, self.saved_at):
            self.save()

    def save(self) -> None:
        """Write a checkpoint and the model of this step, unless they exist."""
        trainer = self.trainer
        with self.log.stage("checkpoint"):
            if self.saved_step != trainer.step_done:
                trainer.save(self.folder.checkpoints, keep=self.config.checkpoint.keep)
            if self.exported_step != trainer.step_done:
                self.folder.save_model(trainer.roles.learners.export)
        self.saved_step = self.exported_step = trainer.step_done
        self.saved_at = time.monotonic()

    def save_last(self) -> None:
        """Save, and wait until everything is on the disk."""
        self.save()
        self.trainer.roles.learners.settle()

    def save_before_error(self) -> None:
        """Save what was learned if the run ends with an error that the learner did not cause."""
        if self.trainer.step_done:
            self.save_last()

    def save_and_stop(self) -> None:
        """Save the run and end it, because the user asked it to stop."""
        try:
            self.save_last()
        except LearnerLost as error:
            raise UserError(
                f"{error}; what it learned since the last checkpoint is lost; {self.remedy}"
            ) from None
        self.log.say(f"stopped at step {self.trainer.step_done}; {self.remedy}")

    def resume(self) -> int | None:
        """Restore the last checkpoint if the run is to be resumed. Returns the last step whose records are
        kept, or None for a new run."""
        if not self.config.run.resume:
            return None
        try:
            found = restore_newest(self.folder.checkpoints, self.trainer.restore, say=self.log.say)
        except LearnerLost as error:
            raise UserError(f"the run could not continue from its checkpoint: {error}") from None
        if found is None:
            return -1  # killed before its first checkpoint: begin again from the same seed
        step = self.trainer.step_done
        if step > self.config.train.steps:
            raise UserError(
                f"{self.folder.path} has taken {step} steps already, more than train.steps="
                f"{self.config.train.steps}; set it to more than {step} to train further"
            )
        self.saved_step = step  # but `model/` may be older than the checkpoint
        return step or -1  # step 0 is only an evaluation, and is done again

    def go_back(self, lost: LearnerLost) -> None:
        """Restore the last checkpoint with a new learner, as often as `runtime.learner_restarts` allows."""
        under_way = self.trainer.step_done + 1
        self.log.note_lost_step(under_way)
        found = checkpoints.latest(self.folder.checkpoints)
        most, step = self.config.runtime.learner_restarts, checkpoints.step_of(found) if found else 0
        self.returns = [*self.returns, step] if step in self.returns else [step]
        where = f"the checkpoint of step {step}" if found else "the beginning"
        if len(self.returns) > most:
            raise UserError(
                f"{lost}; it is not tried again from {where} after runtime.learner_restarts={most} times; "
                f"{self.remedy}"
            )
        self.log.say(f"step {under_way}: {lost}; the run goes back to {where}")
        self.trainer.renew()
        restored = restore_newest(self.folder.checkpoints, self.trainer.restore, say=self.log.say)
        self.saved_step, self.exported_step = self.trainer.step_done if restored else -1, -1
        self.folder.rewind(self.trainer.step_done or -1)


def restore_newest(
    folder: Path, restore: Callable[[Path], None], *, say: Callable[[str], None]
) -> Path | None:
    """Restore the newest whole checkpoint, and return it, or None if there is none. Broken checkpoints are
    reported, and moved aside once a whole one is found."""
    broken: list[checkpoints.BrokenCheckpoint] = []
    for path in checkpoints.newest_first(folder):
        try:
            restore(path)
        except checkpoints.BrokenCheckpoint as error:
            broken.append(error)
            continue
        for one in broken:
            checkpoints.set_aside(one.path)
            say(f"{one}; it is now {one.path.name}.broken, and the run goes on from {path.name}")
        return path
    if broken:
        raise UserError(
            f"no checkpoint in {folder} is whole: {'; '.join(map(str, broken))}; "
            "start a new run, or remove them to begin this one again"
        )
    return None


def is_due(config: schema.Checkpoint, step: int, saved_at: float) -> bool:
    """Return True after the configured number of steps, or of minutes since `saved_at`."""
    by_steps = bool(config.every) and step % config.every == 0
    return by_steps or (bool(config.minutes) and time.monotonic() - saved_at >= 60 * config.minutes)


def tasks_digest(tasks: Sequence[Task]) -> str:
    """Tells whether two runs have the same training tasks."""
    known = [[task.id, task.prompt, task.ground_truth, task.extra_info] for task in tasks]
    return hashlib.blake2b(json.dumps(known, default=str).encode(), digest_size=8).hexdigest()


def resume_command(run: schema.RunConfig, folder: RunFolder, command: str = "train") -> str:
    name = folder.path.relative_to(run.dir)
    words = ["toolwright", command, f"run.name={name}", "run.resume=true"]
    if run.dir != schema.RunConfig().dir:
        words.append(f"run.dir={run.dir}")
    return shlex.join(words)
