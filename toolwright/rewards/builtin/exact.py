"""1 if the answer is the ground truth, apart from white space around it; else 0."""

from __future__ import annotations

from typing import Any

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS


@SCORERS.register("exact", "reverse", "sort", "digits", needs=["final"])
def exact(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    if not isinstance(ground_truth, str | int | float):
        kind = "none" if ground_truth is None else f"{type(ground_truth).__name__} {ground_truth!r:.60}"
        raise TaskFailure(f"the ground truth must be text for scorer 'exact', found {kind}")
    return float(solution_str.strip() == str(ground_truth).strip())
