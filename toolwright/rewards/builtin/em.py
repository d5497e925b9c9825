"""1 for the words of one of the right answers, as Search-R1 judges its questions; else 0."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import golds, stated, words


@SCORERS.register(
    "em",
    "searchR1_nq",
    "searchR1_triviaqa",
    "searchR1_popqa",
    "searchR1_hotpotqa",
    "searchR1_2wikimultihopqa",
    "searchR1_musique",
    "searchR1_bamboogle",
    needs=["final"],
)
def em(solution_str: str, ground_truth: Any, *, strict: bool = True, inside: bool = False) -> float:
    """`strict`: only the content of <answer>…</answer>; `inside`: the right answer need only occur in it."""
    truths = [words(truth) for truth in golds(ground_truth, scorer="em")]
    answer = words(stated(solution_str, strict=strict))
    if inside:
        text = f" {' '.join(answer)} "
        return float(any(f" {' '.join(truth)} " in text for truth in truths if truth))
    return float(bool(answer) and answer in truths)
