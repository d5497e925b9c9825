"""1 for what has the form that was asked for, else 0: by tags, or by a regular expression."""

from __future__ import annotations

import re

from toolwright.failures import UserError
from toolwright.rewards import SCORERS

TAGS = ("think", "answer")


# A regular expression can take for ever on the right text, so it is matched where that can be ended.
@SCORERS.register("format", needs=["process"])
def format(
    turns: list[str], *, tags: list[str] | None = None, pattern: str | None = None, each_turn: bool = False
) -> float:
    """All that the policy said, tools' answers left out; `each_turn`: every turn by itself.

    `tags`: each of them once, closed, and in this order. `pattern`: matches the whole, `.` newlines too.
    """
    if pattern is not None and tags is not None:
        raise UserError("scorer 'format' takes reward.params.format.tags or .pattern, not both")
    said = turns if each_turn else ["".join(turns)]
    if pattern is not None:
        return float(bool(said) and all(re.fullmatch(pattern, text, re.DOTALL) for text in said))
    return float(bool(said) and all(in_order(text, TAGS if tags is None else tags) for text in said))


def in_order(text: str, tags: tuple[str, ...] | list[str]) -> bool:
    """`<a>…</a>…<b>…</b>`, and no further tag of these names anywhere."""
    place = 0
    for mark in (form.format(tag) for tag in tags for form in ("<{}>", "</{}>")):
        place = text.find(mark, place)
        if place < 0 or text.count(mark) != 1:
            return False
        place += len(mark)
    return True
