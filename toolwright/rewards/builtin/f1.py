"""Overlap of words with the ground truth, or with the best of several, as SQuAD and HotpotQA measure it."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import f1_of, golds, stated, words

# HotpotQA: half of a verdict is no verdict.
WHOLE = (["yes"], ["no"], ["noanswer"])


@SCORERS.register("f1", "hotpotqa", "hotpotqa/hotpot_qa", needs=["final"])
def f1(solution_str: str, ground_truth: Any, *, strict: bool = False) -> dict[str, float]:
    """F1 = 2·P·R / (P + R) over words; the part `exact` says whether all words are the same in order.

    The answer is the content of <answer>…</answer>; without the tag the whole text, or nothing if `strict`.
    """
    truths = [words(truth) for truth in golds(ground_truth, scorer="f1")]
    answer = words(stated(solution_str, strict=strict))
    return {
        "score": max(_overlap(answer, truth) for truth in truths),
        "exact": float(any(answer == truth for truth in truths)),
    }


def _overlap(answer: list[str], truth: list[str]) -> float:
    if answer in WHOLE or truth in WHOLE:
        return float(answer == truth)
    return f1_of(answer, truth)
