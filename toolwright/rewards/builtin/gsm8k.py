"""GSM8K's answer: the number after `####`; or, where that is allowed, in `\\boxed{}`, or the last number."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import boxed
from toolwright.rewards.builtin.numeric import TAIL, number_in_box, number_of, numbers


@SCORERS.register("gsm8k", "openai/gsm8k", needs=["final"])
def gsm8k(solution_str: str, ground_truth: Any, *, strict: bool = False) -> float:
    """`strict`: nothing counts without the mark."""
    if isinstance(ground_truth, str):  # the data set's own answers are reasoning, #### and the number
        ground_truth = ground_truth.rpartition("####")[2]
    truth = number_of(ground_truth, scorer="gsm8k")
    _, mark, tail = solution_str.rpartition("####")
    if mark:
        found = numbers(tail[:TAIL])[:1]
    else:
        box = boxed(solution_str)
        if box is not None and not strict:
            return float(number_in_box(box) == truth)
        found = [] if strict else numbers(solution_str[-TAIL:])
    return float(bool(found) and found[-1] == truth)
