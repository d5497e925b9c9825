"""GSM8K's answer: the number after `####`, or the last number where there is no such mark."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.builtin.numeric import number_of, numbers


@SCORERS.register("gsm8k", "openai/gsm8k")
def gsm8k(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    if isinstance(ground_truth, str):  # the data set's own answers are reasoning, #### and the number
        ground_truth = ground_truth.rpartition("####")[2]
    truth = number_of(ground_truth, scorer="gsm8k")
    _, mark, tail = solution_str.rpartition("####")
    found = numbers(tail)
    if not found:
        return 0.0
    return float((found[0] if mark else found[-1]) == truth)
