"""Countdown: 1 for an expression of the task's numbers, each at most once, that equals the target."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import stated, unfit
from toolwright.tasks.builtin.countdown import solves
from toolwright.tasks.generated import parse


@SCORERS.register("countdown", needs=["final"])
def countdown(solution_str: str, ground_truth: Any) -> dict[str, float]:
    """The score is 1 or 0; the part `well_formed` says whether the answer was an expression at all."""
    _check(ground_truth)
    expression = _expression(solution_str)
    return {
        "score": float(solves(expression, ground_truth)),
        "well_formed": float(parse(expression) is not None),
    }


def _expression(text: str) -> str:
    """The last tagged answer, or the last line; of `3*4=12`, the part before the sign."""
    lines = stated(text, strict=False).splitlines()
    return lines[-1].partition("=")[0] if lines else ""


def _check(ground_truth: Any) -> None:
    fits = (
        isinstance(ground_truth, dict)
        and isinstance(ground_truth.get("target"), int)
        and isinstance(ground_truth.get("numbers"), list)
        and all(isinstance(number, int) for number in ground_truth["numbers"])
    )
    if not fits:
        raise unfit(ground_truth, "{'numbers': [int, …], 'target': int}", scorer="countdown")
