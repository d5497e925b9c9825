"""Attempts as the rows of a tracker's table."""

from __future__ import annotations

from typing import Any

from toolwright.observe.attempt import calls, cut, question, visible
from toolwright.observe.trackers import TrackedStep
from toolwright.trajectory import Trajectory

COLUMNS = ["step", "task", "question", "answer", "reward", "tool calls", "stop", "tokens"]
LONGEST = 4000  # characters of a cell


def attempt_rows(step: TrackedStep) -> list[list[Any]]:
    """One row an attempt, in the order of `COLUMNS`."""
    return [[step.number, *_row(attempt)] for attempt in step.attempts]


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
