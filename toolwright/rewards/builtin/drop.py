"""DROP: overlap of words in which a number is a number, and a wrong number is a wrong answer."""

from __future__ import annotations

import re
import string
from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import f1_of, golds, stated

_DIVIDED = re.compile(r"[\s-]+")
_ARTICLES = frozenset(("a", "an", "the"))
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@SCORERS.register("drop", "ucinlp/drop", needs=["final"])
def drop(solution_str: str, ground_truth: Any, *, strict: bool = False) -> dict[str, float]:
    """The best F1 over the right answers (Dua et al. 2019, without its matching of several spans).

    The answer is the content of <answer>…</answer>; without the tag the whole text, or nothing if `strict`.
    """
    truths = [_bag(truth) for truth in golds(ground_truth, scorer="drop")]
    answer = _bag(stated(solution_str, strict=strict))
    return {
        "score": max(_overlap(answer, truth) for truth in truths),
        "exact": float(bool(answer) and answer in truths),
    }


def _bag(text: str) -> list[str]:
    tokens = [token for token in map(_normal, _DIVIDED.split(text.lower())) if token]
    return [token for token in tokens if token not in _ARTICLES] or tokens


def _normal(token: str) -> str:
    """`1,200` and `1200.0` are one number; what is no number loses its punctuation."""
    bare = token.replace(",", "").strip("$%.?!:;()[]\"'")
    return str(float(bare)) if _is_number(bare) else token.translate(_NO_PUNCTUATION)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,300}(\.[0-9]+)?|\.[0-9]+", text, re.ASCII) is not None


def _overlap(answer: list[str], truth: list[str]) -> float:
    if not answer or not truth:
        return 0.0
    figures = {token for token in truth if _is_number(token)}
    if figures and not figures & set(answer):
        return 0.0
    return f1_of(answer, truth)
