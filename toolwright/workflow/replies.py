"""What a model answered, read as an operator asked for it."""

from __future__ import annotations

import re

from toolwright.rewards.answers import tagged

_YES = re.compile(r"\b(true|yes|correct|pass(?:es|ed)?)\b", re.IGNORECASE)
_NO = re.compile(r"\b(false|no|not|incorrect|wrong|fail(?:s|ed)?)\b", re.IGNORECASE)


def field(text: str, tag: str) -> str | None:
    """What the last `<tag>…</tag>` holds; an opened one that nobody closed reaches to the end."""
    found = tagged(text, tag)
    if found is None and (start := text.rfind(f"<{tag}>")) >= 0:
        found = text[start + len(tag) + 2 :].strip()
    return found


def letter(text: str, tag: str, count: int) -> int | None:
    """Which of `count` options A, B, C … was chosen."""
    said = field(text, tag)
    found = re.search(r"(?<![A-Za-z])([A-Za-z])(?![A-Za-z])", text[-40:] if said is None else said)
    place = ord(found[1].upper()) - ord("A") if found else -1
    return place if 0 <= place < count else None


def verdict(text: str, tag: str) -> bool:
    """A yes; whatever cannot be read is a no, so that a solution is looked at once more."""
    said = field(text, tag)
    said = text if said is None else said
    return bool(_YES.search(said)) and not _NO.search(said)
