"""Search-R1's reward for an answer and for the form of the search that led to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from toolwright.rewards import SCORERS
from toolwright.rewards.answers import golds, tagged, words

_TAG = re.compile(r"(</?(?:think|search|information|answer)>)")
_RESULT = re.compile(r"</?information>")
_FORM = re.compile(r"think (search information think )*answer ")


@SCORERS.register("search_r1")
def search_r1(
    solution_str: str,
    ground_truth: Any,
    turns: Sequence[str] = (),
    *,
    structure: float = 0.2,
    final: float = 0.1,
    retrieval: float = 0.0,
) -> dict[str, float]:
    """1 for the words of a right answer in `<answer>`, less `structure` if the form is wrong.

    A wrong answer in the right form earns `structure`, and `retrieval` too if a result of the search has the
    right one. A wrong answer in a wrong form earns `final`; no answer at all, nothing. Results that the
    policy wrote itself are a wrong form.
    """
    truths = [words(truth) for truth in golds(ground_truth, scorer="search_r1")]
    forged = any(_RESULT.search(turn) for turn in turns)
    found = None if forged else blocks(solution_str)
    formed = found is not None
    answer = tagged(solution_str)
    right = answer is not None and words(answer) in truths
    if right:
        score = 1.0 if formed else 1.0 - structure
    elif found is not None:
        results = [f" {' '.join(words(text))} " for name, text in found if name == "information"]
        seen = any(f" {' '.join(truth)} " in result for truth in truths for result in results)
        score = structure + (retrieval if seen else 0.0)
    else:
        score = 0.0 if answer is None else final
    return {"score": score, "acc": float(right), "format": float(formed)}


def blocks(text: str) -> list[tuple[str, str]] | None:
    """The name and the content of each block, if the text is thoughts with searches between them, then an
    answer, and nothing beside; else None."""
    parts = _TAG.split(text)
    outside, found = parts[::4], list(zip(parts[1::4], parts[2::4], parts[3::4], strict=False))
    closed = all(end == f"</{start[1:]}" for start, _, end in found)
    names = "".join(f"{start[1:-1]} " for start, _, _ in found)
    if len(parts) % 4 != 1 or not closed or any(map(str.strip, outside)) or not _FORM.fullmatch(names):
        return None
    return [(start[1:-1], content) for start, content, _ in found]
