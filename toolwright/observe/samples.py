"""A few attempts in full at a run's end: what the policy did at its first step, and what at its last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolwright.observe import rollouts
from toolwright.observe.attempt import calls, ground_truth, question, segment_text, telling
from toolwright.observe.numbers import compact
from toolwright.trajectory import Trajectory, as_groups

SHOWN = 2  # attempts of a step
LINE = 96  # characters


def sample_attempts(run: Path) -> str:
    """Plain text, empty where no rollouts were kept."""
    found = rollouts.files(run)
    steps = dict.fromkeys([next(iter(found)), next(reversed(found))]) if found else {}
    lines: list[str] = []
    for step in steps:
        lines.append(f"attempts of step {step}")
        for attempt in telling(as_groups(rollouts.read(found[step])), most=SHOWN):
            lines += _lines(attempt)
    return "\n".join(lines)


def _lines(attempt: Trajectory) -> Iterator[str]:
    worth = "failed" if attempt.reward is None else f"reward {compact(attempt.reward)}"
    yield f"  {question(attempt.task, LINE)}  ({worth}; right is {ground_truth(attempt.task)[:LINE]})"
    for segment in attempt.segments:
        if segment.source != "prompt":
            told = "".join(f"  ({call.outcome})" for call in calls(segment))
            yield f"    {segment.source:<12}{_one_line(segment_text(segment))}{told}"


def _one_line(text: str) -> str:
    line = text.replace("\n", "⏎")
    half = LINE // 2
    return line if len(line) <= LINE else f"{line[:half]} … {line[-half:]}"
