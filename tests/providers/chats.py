"""A chat that answers as it is told, and one that lets a test decide when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Unpack

from toolwright.providers import ChatReply, CompletionOptions

ASK: dict[str, Any] = {"temperature": 1.0, "max_tokens": 10}


def said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


@dataclass
class Simulated:
    """Counts how often it is asked; an exception among its answers is raised."""

    answers: Callable[[int], ChatReply | Exception] = lambda n: ChatReply(f"answer {n}", (), 5, 7)
    name: str = "simulated"
    pause_s: float = 0.0
    asked: list[Any] = field(default_factory=list)
    side_by_side: int = 0
    most: int = 0

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        number = len(self.asked)
        self.asked.append((messages, how))
        self.side_by_side += 1
        self.most = max(self.most, self.side_by_side)
        try:
            await asyncio.sleep(self.pause_s)
        finally:
            self.side_by_side -= 1
        answer = self.answers(number)
        if isinstance(answer, Exception):
            raise answer
        return answer
