"""Trackers by name: programs that show a run's metrics and attempts elsewhere, and the calls that each gets.

A tracker lives in a process of its own (`observe/tracker_process.py`) and is fed by `observe/tracking.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from toolwright.observe.attempt import calls, cut, question, visible
from toolwright.registry import Registry
from toolwright.trajectory import Trajectory

COLUMNS = ["step", "task", "question", "answer", "reward", "tool calls", "stop", "tokens"]
LONGEST = 4000  # characters of a cell


@dataclass(frozen=True)
class TrackedRun:
    """The run that begins, or goes on."""

    name: str  # of its folder, unless the settings give another
    id: str  # stays the same when the run is resumed
    command: str  # train or sft
    folder: Path
    files: Path  # a folder of the tracker's own, within the run's
    config: dict[str, Any]  # resolved, without secrets
    notes: str = ""
    resumed: bool = False  # it was tracked before, under the same id
    step: int = 0  # the last one done


@dataclass(frozen=True)
class TrackedStep:
    """A step that was taken. Step 0 is the evaluation before training."""

    number: int
    metrics: dict[str, float]  # some may be NaN
    time: float  # when it ended, in seconds since 1970
    rollouts: Path | None = None  # its file of attempts
    shown: int | None = None  # how many attempts to show; None: all

    @cached_property
    def attempts(self) -> list[Trajectory]:
        """The attempts to show, spread over the rewards. None if the file is gone by now."""
        from toolwright.observe.rollouts import spread

        if self.rollouts is None or self.shown == 0 or not self.rollouts.exists():
            return []
        return spread(self.rollouts, self.shown)

    @property
    def rows(self) -> list[list[Any]]:
        """The attempts as rows of a table, in the order of `Tracker.columns`."""
        return [[self.number, *_row(attempt)] for attempt in self.attempts]


@dataclass(frozen=True)
class TrackedEnd:
    """The end of a run."""

    status: Literal["finished", "stopped", "failed"]
    summary: dict[str, Any]  # the figures of the closing table
    text: str = ""  # the closing table
    report: Path | None = None  # report.html


class Tracker:
    """Override what your tracker needs. Its settings are the arguments of `__init__`.

    An exception costs the step; a run never waits for a tracker and never fails with one.
    """

    columns: ClassVar[list[Any]] = COLUMNS  # of `TrackedStep.rows`
    shown: ClassVar[int | None] = 4  # attempts of each step, unless the settings say; None: all

    def begin(self, run: TrackedRun) -> None:
        """The run begins, or goes on after `run.step`."""

    def step(self, step: TrackedStep) -> None:
        """A step was taken and written down."""

    def finish(self, end: TrackedEnd) -> None:
        """The run ended. Return once everything is where it belongs."""


TRACKERS: Registry[Callable[..., Tracker]] = Registry("tracker", "toolwright.observe.trackers")


def _row(attempt: Trajectory) -> list[Any]:
    called = [call.line for segment in attempt.segments for call in calls(segment)]
    answer = visible(attempt.failure.message if attempt.failure else attempt.response)
    return [
        visible(attempt.task.id),
        question(attempt.task, LONGEST),
        cut(answer, LONGEST),
        attempt.reward,
        cut("\n".join(called), LONGEST),
        "failed" if attempt.failure else visible(attempt.stop),
        attempt.sampled_tokens,
    ]
