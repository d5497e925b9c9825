"""Answers a question in one turn."""

from __future__ import annotations

from toolwright.agents import registry
from toolwright.agents.attempt import Attempt


@registry.register("single_turn")
class SingleTurn:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        await attempt.act()
