"""Votes of attempts, for the answer that most of them give."""

from __future__ import annotations

import re
from typing import Any

from toolwright.rewards.answers import boxed, tagged, words
from toolwright.rewards.builtin.numeric import numbers

# Ways to write one thing in LaTeX.
_SPELLINGS = (
    (re.compile(r"\\(?:left|right|!|,|;| )"), ""),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\text\{([^{}]*)\}"), r"\1"),
    (re.compile(r"[\s$]|\\\$|\\%|%"), ""),
)
LONGEST = 4000  # characters of a turn, its last ones


def can_vote(ground_truth: Any) -> bool:
    """Return True if answers to the task can be counted: they are words or a number, not a program or a
    walk."""
    if isinstance(ground_truth, dict):
        ground_truth = ground_truth.get("target")
    if isinstance(ground_truth, list):
        return bool(ground_truth) and all(isinstance(one, str) for one in ground_truth)
    return isinstance(ground_truth, str | int | float)


def vote_of(text: str, ground_truth: Any) -> str | None:
    """The answer that the last turn `text` states, so written that equal answers are equal texts.

    It stands within <answer>, within \\boxed{} or after ####. If it is not marked, it is the last number
    where the truth is one, else the whole turn. None: there is no answer.
    """
    text = text[-LONGEST:]
    marked = _marked(text)
    if marked is None and _is_number(ground_truth):
        found = numbers(text)
        return None if not found else _number(str(found[-1]))
    if marked is None:
        return " ".join(words(text)) or None
    return _number(marked) or spelled(marked) or None


def _marked(text: str) -> str | None:
    for found in (tagged(text), boxed(text)):
        if found is not None:
            return found
    _, mark, after = text.rpartition("####")
    return after.strip().partition("\n")[0] if mark else None


def _is_number(ground_truth: Any) -> bool:
    return isinstance(ground_truth, int | float) or _number(str(ground_truth)) is not None


def _number(text: str) -> str | None:
    """A number alone, without what may be written around it: $1,200.0 is 1200."""
    found = numbers(text)
    bare = re.sub(r"[\s$.,%]|\\", "", text)
    if len(found) != 1 or not re.fullmatch(r"-?[0-9]+", bare):
        return None
    return f"{found[0].normalize():f}"


def spelled(text: str) -> str:
    """LaTeX in one of its spellings, without blanks."""
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    return text.lower()
