"""Overlap of words with the ground truth, or with the best of several, as SQuAD and HotpotQA measure it."""

from __future__ import annotations

import re
import string
from collections import Counter
from typing import Any

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS


@SCORERS.register("f1", "hotpotqa/hotpot_qa", "ucinlp/drop")
def f1(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]
) -> dict[str, float]:
    """F1 = 2·P·R / (P + R) over words; the part `exact` says whether all words are the same in order."""
    truths = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    if not truths or not all(isinstance(truth, str) for truth in truths):
        kind = type(ground_truth).__name__
        raise TaskFailure(
            f"the ground truth must be text or a list of texts for scorer 'f1', found {kind} "
            f"{ground_truth!r:.60}"
        )
    answer = _words(solution_str)
    return {
        "score": max(_overlap(answer, _words(truth)) for truth in truths),
        "exact": float(any(answer == _words(truth) for truth in truths)),
    }


def _words(text: str) -> list[str]:
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", text).split()


def _overlap(answer: list[str], truth: list[str]) -> float:
    if not answer or not truth:
        return float(answer == truth)
    shared = sum((Counter(answer) & Counter(truth)).values())
    return 2 * shared / (len(answer) + len(truth))
