"""Agents: loops that attempt a task by asking an engine for tokens."""

from __future__ import annotations

from typing import Protocol

from toolwright.agents.attempt import Attempt
from toolwright.registry import Registry


class Agent(Protocol):
    """Built once in the process that uses it; attempts run side by side, so state belongs to the attempt."""

    async def attempt(self, attempt: Attempt) -> None:
        """Try `attempt.task`. What is worth learning from is in the trajectory when this returns."""
        ...


registry: Registry[type[Agent]] = Registry("agent", "toolwright.agents")
