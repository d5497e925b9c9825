"""Demonstrations for the supervised warm start: the right answer, or a wrong one at a chosen rate."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from toolwright.tasks import Demonstrate
from toolwright.trajectory import Task

ErrorRate = Annotated[float, Field(ge=0, le=1)]


def answering(
    answer: Callable[[Task], str],
    *,
    alphabet: str,
    error_rate: float,
    right: Callable[[Task, str], bool] | None = None,
) -> Demonstrate:
    """Demonstrate `answer`; at `error_rate`, with one character replaced by another of the alphabet.

    `right` says whether a changed answer happens to be right all the same; without it, every change is wrong.
    """

    def demonstrate(task: Task, rng: random.Random) -> list[dict[str, Any]]:
        text = answer(task)
        if rng.random() < error_rate:
            wrong = _slip(text, alphabet, rng)
            while right is not None and right(task, wrong):
                wrong = _slip(text, alphabet, rng)
            text = wrong
        return [{"role": "assistant", "content": text}]

    return demonstrate


def _slip(text: str, alphabet: str, rng: random.Random) -> str:
    place = rng.randrange(len(text))
    other = rng.choice([character for character in alphabet if character != text[place]])
    return text[:place] + other + text[place + 1 :]
