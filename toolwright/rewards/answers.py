"""Finds the answer in a text, and reads ground truths that are words.

All of it takes linear time: a policy may write anything.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from typing import Any

from toolwright.failures import TaskFailure

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BETWEEN = re.compile(r"[\s,;$]*+(?:and|or)?[\s$]*+")  # two boxes of one answer
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def boxed(text: str) -> str | None:
    """The content of the last `\\boxed{…}` with balanced braces; None if there is none or it does not end."""
    start = max((box.end() for box in _BOX.finditer(text)), default=-1)
    if start < 0:
        return None
    depth = 1
    for brace in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        # \{ is a visible brace and groups nothing
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : start + brace.start()]
    return None


def boxed_together(text: str) -> list[str]:
    """The contents of the last boxes that stand side by side: of `\\boxed{1} and \\boxed{2}` both."""
    found: list[str] = []
    opened: list[re.Match[str]] = []
    end = 0
    for mark in re.finditer(rf"{_BOX.pattern}|\\.|[{{}}]", text, re.DOTALL):
        if mark[0].endswith("{") and mark[0] != "\\{":
            opened.append(mark)
        elif mark[0] == "}" and opened and (start := opened.pop())[0] != "{":
            if not _BETWEEN.fullmatch(text, end, start.start()):
                found = []
            found.append(text[start.end() : mark.start()])
            end = mark.end()
    return found


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
    """Words as SQuAD and HotpotQA compare them: lower case, without punctuation and articles.

    A text of nothing else keeps them: blood type A is an answer, and an empty one does not equal it.
    """
    text = unicodedata.normalize("NFKC", text).lower()
    return _ARTICLES.sub(" ", text.translate(_NO_PUNCTUATION)).split() or text.split()


def f1_of(answer: list[str], truth: list[str]) -> float:
    """F1 = 2·P·R / (P + R) over words, which may repeat."""
    shared = sum((Counter(answer) & Counter(truth)).values())
    return 2 * shared / (len(answer) + len(truth))


def golds(ground_truth: Any, *, scorer: str) -> list[str]:
    """The right answers: a text, a list of texts, or Search-R1's {'target': …}. Blank ones are left out, or
    saying nothing would be right."""
    found = ground_truth.get("target") if isinstance(ground_truth, dict) else ground_truth
    given = found if isinstance(found, list) else [found]
    texts = [text for text in given if isinstance(text, str) and text.strip()]
    if not texts or not all(isinstance(text, str) for text in given):
        raise unfit(ground_truth, "text or a list of texts", scorer=scorer)
    return texts


def unfit(ground_truth: Any, expected: str, *, scorer: str) -> TaskFailure:
    """The failure of a task whose ground truth the scorer cannot use."""
    none = (
        "none; put it into reward_model.ground_truth of the row, or name its column with "
        "task.params.answer=COLUMN"
    )
    found = none if ground_truth is None else f"{type(ground_truth).__name__} {ground_truth!r:.60}"
    return TaskFailure(f"the ground truth must be {expected} for scorer {scorer!r}, found {found}")
