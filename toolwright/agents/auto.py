"""Chooses the agent for a task: its environment's, one that searches or uses tools, or a single turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolwright.agents import Agent, registry
from toolwright.agents.attempt import Attempt
from toolwright.trajectory import Task


@registry.register("auto")
class Auto:
    """`agents` returns the agent of a name."""

    def __init__(
        self, agents: Callable[[str], Agent], tool_settings: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.agents, self.tool_settings = agents, tool_settings
        agents(choice(Task("", []), tool_settings))  # a mistake in its settings fails before the run starts

    async def attempt(self, attempt: Attempt) -> None:
        await self.agents(choice(attempt.task, self.tool_settings)).attempt(attempt)


def choice(task: Task, tool_settings: Mapping[str, Mapping[str, Any]]) -> str:
    """The agent's name. `extra_info.tools` restricts the run's tools."""
    if task.extra_info.get("environment"):
        return "environment"
    if task.extra_info.get("interaction"):
        return "interaction"
    if not tool_settings or task.extra_info.get("tools") == []:
        return "single_turn"
    return "search" if any(searches(*entry) for entry in tool_settings.items()) else "tool_use"


def searches(label: str, settings: Mapping[str, Any]) -> bool:
    return (settings.get("path") or label) == "search"
