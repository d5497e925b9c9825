"""Finds the answer in a text, and reads ground truths that are words.

All of it takes linear time: a policy may write anything.
"""

from __future__ import annotations

import re
import string
from typing import Any

from toolwright.failures import TaskFailure

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}` with balanced braces; None if there is none or it does not end."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for brace in re.finditer(
        r"\\.|[{}]", text[start:], re.DOTALL
    ):  # \{ is a visible brace and groups nothing
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : start + brace.start()]
    return None


def tagged(text: str, tag: str = "answer") -> str | None:
    """The content of the last `<answer>…</answer>`, as Search-R1 has it; None if there is none."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, max(end, 0))
    return text[start + len(tag) + 2 : end].strip() if start >= 0 else None


def stated(text: str, *, strict: bool) -> str:
    """The tagged answer. Without a tag the whole text, or nothing if `strict`."""
    answer = tagged(text)
    return (("" if strict else text) if answer is None else answer).strip()


def words(text: str) -> list[str]:
    """Words as SQuAD and HotpotQA compare them: lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def golds(ground_truth: Any, *, scorer: str) -> list[str]:
    """The right answers: a text, a list of texts, or Search-R1's {'target': …}."""
    found = ground_truth.get("target") if isinstance(ground_truth, dict) else ground_truth
    texts = [text for text in (found if isinstance(found, list) else [found]) if isinstance(text, str)]
    if not texts or (isinstance(found, list) and len(texts) < len(found)):
        raise unfit(ground_truth, "text or a list of texts", scorer=scorer)
    return texts


def unfit(ground_truth: Any, expected: str, *, scorer: str) -> TaskFailure:
    """The failure of a task whose ground truth the scorer cannot use."""
    none = (
        "none; a row of a file has it in reward_model.ground_truth, or where task.params.answer=COLUMN says"
    )
    found = none if ground_truth is None else f"{type(ground_truth).__name__} {ground_truth!r:.60}"
    return TaskFailure(f"the ground truth must be {expected} for scorer {scorer!r}, found {found}")
