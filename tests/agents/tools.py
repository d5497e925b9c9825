"""Tools for the tests, as a user's own file holds them."""

from __future__ import annotations

import asyncio

import numpy as np

from toolwright.failures import InfrastructureFailure
from toolwright.tools.call import ToolResult

ended: list[str] = []
met: list[int] = []


def echo(text: str) -> str:
    """Says it again.

    Args:
        text: what to say
    """
    return text


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def wait(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"waited {seconds}"


async def meet(count: int) -> str:
    """Answers once so many are asked at the same time."""
    met.append(count)
    while len(met) < count:
        await asyncio.sleep(0.01)
    return f"{count} have met"


def broken(text: str) -> str:
    """Never works."""
    raise ValueError("no such thing")


def gone(text: str) -> str:
    """Its server is down."""
    raise InfrastructureFailure("the server http://tools:80 is gone")


def prize(text: str) -> ToolResult:
    """Pays for the right word."""
    paid = {"right": 0.5, "wrong": -0.25, "endless": float("inf"), "numpy": np.float32(0.75)}.get(text)
    return ToolResult(f"you said {text}", reward=paid)


def noise(kind: str) -> str:
    """Says what a tool should not."""
    return {
        "nul": "a\0b",
        "surrogate": "a\ud800b\udc00",
        "long": "0123456789" * 20_000,
        "private": "".join(map(chr, range(0xE000, 0xE100))),
        "empty": "",
    }.get(kind, kind)


class Note:
    """Keeps a note for the attempt.

    Args:
        text: the note
    """

    def __init__(self) -> None:
        self.notes: dict[str, list[str]] = {}

    def __call__(self, text: str, *, attempt: str) -> str:
        self.notes.setdefault(attempt, []).append(text)
        return " ".join(self.notes[attempt])

    async def end(self, attempt: str) -> None:
        ended.append(attempt)
        self.notes.pop(attempt, None)
