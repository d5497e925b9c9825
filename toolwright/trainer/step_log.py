"""The log of a run's steps, shared by all commands that train: display, metrics and trackers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from toolwright.config import schema
from toolwright.observe.progress import Progress
from toolwright.observe.report import write_report
from toolwright.observe.summary import closing_table
from toolwright.observe.tracking import Tracking
from toolwright.trainer.interrupt import Interrupt
from toolwright.trainer.run_folder import RunFolder

UNREAD = "the output of this run was closed; the run continues, and this log has its messages"


class StepLog:
    """`command` is train, sft or rm. `steps` is the number of steps that the run will take; 0 if it is not
    known yet."""

    def __init__(
        self,
        config: schema.Config | schema.DataConfig,
        folder: RunFolder,
        *,
        command: str,
        title: str,
        steps: int,
    ) -> None:
        self.folder, self.command, self.steps = folder, command, steps
        self._settings, self._trackers = config.model_dump(mode="json"), config.trackers
        self.progress = Progress(steps, title=title)
        self.progress.stream.gone = lambda: folder.log(UNREAD)
        self.tracking: Tracking | None = None

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Show and time a stage of the run."""
        return self.progress.stage(name)

    def say(self, text: str) -> None:
        self.progress.line(text)
        self.folder.log(text)

    def plan(self, steps: int, lines: Sequence[str]) -> None:
        """Take the number of steps of a run that did not know it at first, and print what led to it."""
        self.progress.state.total = self.steps = steps
        if self.tracking is not None:
            self.tracking.total = steps
        for line in lines:
            self.say(line)

    def tracked(self, *, step: int) -> Tracking:
        """Open the run's trackers for the steps within a `with` block."""
        self.tracking = Tracking(
            self._trackers,
            command=self.command,
            folder=self.folder.path,
            config=self._settings,
            total=self.steps,
            step=step,
            say=self.say,
        )
        return self.tracking

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics, and show them."""
        self.folder.metrics.append(step, metrics)
        self.progress.step(step, metrics)
        if self.tracking is not None:
            self.tracking.step(step, metrics)

    @contextmanager
    def surround(self, lines: Sequence[str], *, step: int = 0, remedy: str) -> Iterator[Interrupt]:
        """Do what every run needs around its steps: first lines, trackers, Ctrl-C, explained errors, a
        report and the closing table. `step` is the last finished step. `remedy` says how to continue
        after an error."""
        folder, room = self.folder, self.folder.explaining_write_errors(then=remedy)
        with folder.noting_error(), self.progress, Interrupt() as interrupt, room, self.tracked(step=step):
            for line in (f"run folder {folder.path}", *lines):
                self.say(line)
            yield interrupt
            write_report(folder.path)
        self.progress.line(closing_table(folder.path))
        interrupt.leave()
