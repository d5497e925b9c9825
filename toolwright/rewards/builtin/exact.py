"""1 if the answer is the ground truth, apart from white space around it; else 0."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import unfit


@SCORERS.register("exact", "reverse", "sort", "digits", needs=["final"])
def exact(solution_str: str, ground_truth: Any) -> float:
    if not isinstance(ground_truth, str | int | float):
        raise unfit(ground_truth, "text", scorer="exact")
    return float(solution_str.strip() == str(ground_truth).strip())
