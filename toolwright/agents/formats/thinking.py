"""Thoughts and speech: what stands between `<think>` and `</think>` is not said to anyone."""

from __future__ import annotations

import re

_MARK = re.compile(r"<(/?)think>")


def spoken(text: str, *, thinking: bool = False) -> tuple[str, bool]:
    """The text without its thoughts, and whether it ends in the middle of one.

    `thinking`: it begins in the middle of one. So it does as well where a thought ends that never began:
    some templates open it themselves.
    """
    said: list[str] = []
    place = 0
    for mark in _MARK.finditer(text):
        closes = bool(mark[1])
        if not closes and not thinking:
            said.append(text[place : mark.start()])
        thinking = not closes
        place = mark.end()
    if not thinking:
        said.append(text[place:])
    return "\n".join(said), thinking
