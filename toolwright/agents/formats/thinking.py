"""Thoughts and speech: text between `<think>` and `</think>` is addressed to nobody."""

from __future__ import annotations

import re

_MARK = re.compile(r"<(/?)think>")


def spoken(text: str, *, thinking: bool = False) -> tuple[str, bool]:
    """Return the text without its thoughts, and whether it ends inside one.

    `thinking`: it begins inside one. A thought that ends without a beginning also started before the text,
    because some templates open it.
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
