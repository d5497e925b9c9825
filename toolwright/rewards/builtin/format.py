"""1 if the text has the required format, else 0: by tags, or by a regular expression."""

from __future__ import annotations

import re

from toolwright.failures import UserError
from toolwright.rewards import SCORERS

TAGS = ("think", "answer")


# A regular expression can take for ever on some texts, so it runs in a process that can be killed.
@SCORERS.register("format", needs=["process"])
def format(
    turns: list[str], *, tags: list[str] | None = None, pattern: str | None = None, each_turn: bool = False
) -> float:
    """Checks all of the policy's text, without the answers of tools; with `each_turn`, every turn by itself.

    `tags`: each of them once, closed, and in this order. `pattern`: matches the whole, `.` newlines too.
    """
    if pattern is not None and tags is not None:
        raise UserError("scorer 'format' takes reward.params.format.tags or .pattern, not both")
    texts = turns if each_turn else ["".join(turns)]
    if pattern is not None:
        return float(bool(texts) and all(re.fullmatch(pattern, text, re.DOTALL) for text in texts))
    return float(bool(texts) and all(in_order(text, TAGS if tags is None else tags) for text in texts))


def in_order(text: str, tags: tuple[str, ...] | list[str]) -> bool:
    """`<a>…</a>…<b>…</b>`, and no further tag of these names anywhere."""
    place = 0
    for mark in (form.format(tag) for tag in tags for form in ("<{}>", "</{}>")):
        place = text.find(mark, place)
        if place < 0 or text.count(mark) != 1:
            return False
        place += len(mark)
    return True
