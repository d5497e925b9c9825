"""Agents: loops that attempt a task by asking an engine for tokens."""

from __future__ import annotations

from typing import Protocol

from toolwright.agents.attempt import Attempt
from toolwright.registry import Registry


class Agent(Protocol):
    """Attempts tasks. An agent is built once in the process that uses it. Attempts run side by side, so state
    belongs to the attempt."""

    async def attempt(self, attempt: Attempt) -> None:
        """Try `attempt.task`. When this returns, the trajectory holds everything worth learning from."""
        ...


registry: Registry[type[Agent]] = Registry("agent", "toolwright.agents")
