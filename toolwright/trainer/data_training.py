"""The loop of the commands that learn from data alone, `sft` and `rm`: steps, checkpoints and resuming."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Generic, TypeVar

from toolwright.config import schema
from toolwright.config.batch import checkpoint_line
from toolwright.config.block import require_number
from toolwright.failures import UserError
from toolwright.learner import checkpoints
from toolwright.learner.budget import ModelPasses
from toolwright.models.tokenizer import Tokenizer
from toolwright.observe.metrics import Metrics
from toolwright.tasks.order import TaskOrder
from toolwright.trainer.checkpointing import is_due, restore_newest, resume_command, tasks_digest
from toolwright.trainer.interrupt import Interrupt, StopRequested
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.step_log import StepLog
from toolwright.trajectory import Task

DataConfigT = TypeVar("DataConfigT", bound=schema.DataConfig)
STEPS = 200  # where neither `steps` nor `epochs` says it


class DataTraining(ABC, Generic[DataConfigT]):
    """One run of a command. Subclasses say what it learns from, and how."""

    command: str  # also the name of the learner's state in a checkpoint
    examples: str  # what the data consists of, in words
    eval_every = 0  # steps between evaluations; 0: before and after
    learner: ModelPasses

    def __init__(
        self, config: DataConfigT, folder: RunFolder, tokenizer: Tokenizer, *, lines: Sequence[str]
    ) -> None:
        """`lines` are printed before the first step."""
        self.config, self.folder, self.tokenizer = config, folder, tokenizer
        self.lines = list(lines)
        self.order: TaskOrder | None = None  # None until it is known what there is to learn from
        self.step, self.exported_step = 0, -1
        self.saved_step, self.saved_at = -1, time.monotonic()

    @abstractmethod
    def update(self, rows: Sequence[int]) -> dict[str, float]:
        """Learn from these examples."""

    @abstractmethod
    def held_out(self) -> dict[str, float]:
        """Evaluate what was learned so far."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Save the model as a Hugging Face folder."""

    def gather(self, log: StepLog, interrupt: Interrupt) -> None:
        """Make the data if it is not known when the run starts, and call `learn_from`."""
        assert self.order is not None

    def learn_from(self, tasks: Sequence[Task]) -> None:
        """Take the order of the examples, which `tasks` tell apart, and the number of steps."""
        self.order = TaskOrder(len(tasks), self.config.run.seed)
        self.tasks_digest = tasks_digest(tasks)
        steps, epochs = self.config.steps, self.config.epochs
        if epochs is not None:
            steps = ceil(epochs * len(tasks) / self.config.batch)
            counted = f"{epochs:g} × {len(tasks):,} {self.examples}"
            self.lines.append(f"{steps:,} steps of {self.config.batch}: {counted} (epochs)")
        decided = STEPS if steps == "auto" else steps
        self.config = self.config.changed({"steps": decided, "epochs": None})
        assert self.learner.optimizer is not None
        self.learner.optimizer.total_updates = decided

    @property
    def steps(self) -> int:
        """The planned number; 0 as long as it is not known."""
        return 0 if self.order is None else require_number(self.config.steps, "steps")

    @property
    def begun(self) -> bool:
        """True if an earlier process of this run has evaluated the model that it began with."""
        return any(row["step"] == 0 for row in Metrics.read(self.folder.path / "metrics.jsonl"))

    def run(self, *, command: Sequence[str], title: str) -> None:
        """Take the steps that are left."""
        config, folder = self.config, self.folder
        remedy = resume_command(config.run, folder, self.command)
        self.lines.append(checkpoint_line(config.checkpoint))
        log = StepLog(config, folder, command=self.command, title=title, steps=self.steps)
        begun = config.run.resume and self.begun
        if config.run.resume:  # first of all: a run that cannot go on is left as it is
            self._resume(log)
        folder.begin(config, command=command, tokenizer=self.tokenizer)
        if config.run.resume:
            folder.rewind(self.step if begun else -1)
        with log.surround(self.lines, step=self.step, remedy=remedy) as interrupt:
            try:
                self._take_steps(log, interrupt, begun=begun)
            except StopRequested:
                if self.order is not None:
                    self._save(log)
                log.say(f"stopped at step {self.step}; continue with: {remedy}")

    def _take_steps(self, log: StepLog, interrupt: Interrupt, *, begun: bool) -> None:
        if not begun:
            log.write(0, self.held_out())
        if self.order is None:
            known = len(self.lines)
            self.gather(log, interrupt)
            self.folder.write_config(self.config)
            log.plan(self.steps, self.lines[known:])
        log.progress.begin_steps()
        while self.step < self.steps:
            interrupt.check()
            self._take_step(log)
        self._save(log)

    def _take_step(self, log: StepLog) -> None:
        assert self.order is not None
        started = time.perf_counter()
        with log.stage("update"):
            found = self.update(self.order.take(self.config.batch))
        self.step += 1
        metrics = {f"policy/{name}": value for name, value in found.items()}
        metrics["time/total_s"] = time.perf_counter() - started
        problem: Exception | None = None
        if self.step == self.steps or (self.eval_every and self.step % self.eval_every == 0):
            try:
                with log.stage("evaluate"):
                    metrics.update(self.held_out())
            except Exception as error:
                problem = error  # raised once what was learned is safe
        log.write(self.step, metrics)
        if problem is not None or is_due(self.config.checkpoint, self.step, self.saved_at):
            self._save(log)
        if problem is not None:
            raise problem

    def _save(self, log: StepLog) -> None:
        """Write a checkpoint and the model of this step, unless they exist."""
        assert self.order is not None
        with log.stage("checkpoint"):
            if self.saved_step != self.step:
                state = {"step": self.step, "order": self.order.state(), "tasks": self.tasks_digest}
                tensors, keep = {self.command: self.learner.state_dict()}, self.config.checkpoint.keep
                checkpoints.save(self.folder.checkpoints, self.step, state, tensors, keep=keep)
            if self.exported_step != self.step:
                self.folder.save_model(self.export)
        self.saved_step = self.exported_step = self.step
        self.saved_at = time.monotonic()

    def _resume(self, log: StepLog) -> None:
        restored = restore_newest(self.folder.checkpoints, self._restore, say=log.say)
        if self.step > self.steps:
            raise UserError(
                f"{self.folder.path} has taken {self.step} steps already, more than steps={self.steps}; set "
                f"it to more than {self.step} to train further"
            )
        if restored is None and self.folder.model.is_dir():  # of version 0.1, or its checkpoints were removed
            raise UserError(
                f"{self.folder.path} has a model and no checkpoint to resume from; start a new run, or train "
                f"further with model.path={self.folder.model}"
            )
        if restored is not None:
            self.saved_step = self.step  # but `model/` may be older than the checkpoint
            self.lines.append(f"going on after step {self.step}")
        if changed := self.folder.changed_settings(self.config):
            self.lines.append(f"settings that differ from before: {', '.join(changed)}")
        if self.order is not None and self.step == self.steps:
            self.lines.append(f"all {self.steps} steps are done; raise steps to train further")

    def _restore(self, path: Path) -> None:
        state, tensors = checkpoints.load(path)
        if self.order is None:
            raise UserError(f"the {self.examples} that {path} has learned from are gone; start a new run")
        try:
            if state["tasks"] != self.tasks_digest:
                raise UserError(
                    f"the checkpoint is of other {self.examples}: resume with the settings and files that "
                    "the run began with, or start a new run"
                )
            self.learner.load_state_dict(tensors[self.command])
            self.order.restore(state["order"])
        except (KeyError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise UserError(
                f"the checkpoint is of another model or command ({reason}): resume with those that the run "
                "began with, or start a new run"
            ) from None
        self.step = int(state["step"])
