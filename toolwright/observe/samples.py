"""A few attempts of the first and the last step, printed when a run ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from toolwright.observe import rollouts
from toolwright.observe.attempt import calls, examples, ground_truth, question, segment_text
from toolwright.observe.numbers import compact
from toolwright.trajectory import Trajectory, as_groups

SHOWN = 2  # attempts of a step
LINE = 96  # characters


def sample_attempts(run: Path) -> str:
    """Plain text; empty if no rollouts were kept."""
    found = rollouts.files(run)
    steps = dict.fromkeys([next(iter(found)), next(reversed(found))]) if found else {}
    lines: list[str] = []
    for step in steps:
        lines.append(f"attempts of step {step}")
        for attempt in examples(as_groups(rollouts.read(found[step])), most=SHOWN):
            lines += _lines(attempt)
    return "\n".join(lines)


def _lines(attempt: Trajectory) -> Iterator[str]:
    score = "failed" if attempt.reward is None else f"reward {compact(attempt.reward)}"
    if attempt.task.ground_truth is not None:
        score += f"; right is {ground_truth(attempt.task)[:LINE]}"
    yield f"  {question(attempt.task, LINE)}  ({score})"
    for segment in attempt.segments:
        if segment.source != "prompt":
            outcomes = "".join(f"  ({call.outcome})" for call in calls(segment))
            yield f"    {segment.source:<12}{_one_line(segment_text(segment))}{outcomes}"


def _one_line(text: str) -> str:
    line = text.replace("\n", "⏎")
    half = LINE // 2
    return line if len(line) <= LINE else f"{line[:half]} … {line[-half:]}"
