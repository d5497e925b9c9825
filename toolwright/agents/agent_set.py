"""The agents of a run by name, the tools they share, and the prompts that their attempts start with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from toolwright.agents import Agent, registry
from toolwright.agents.auto import choice
from toolwright.agents.environment import EnvironmentLoop
from toolwright.agents.tool_prompt import ToolPrompt
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.failures import TaskFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task


class AgentSet:
    """Builds agents when they are first used, and opens tools in the running event loop."""

    def __init__(
        self,
        config: schema.RolloutConfig,
        tokenizer: Tokenizer,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.config, self.tokenizer = config, tokenizer
        self.tool_settings = tools or {}
        self.tools = Toolbox(self.tool_settings, timeout_s=config.tool_timeout_s)
        self._agents: dict[str, Agent] = {}

    def agent(self, name: str) -> Agent:
        """Return the agent of that name. Its constructor gets the arguments that it has parameters for."""
        if name not in self._agents:
            entry = registry.get(name)
            if inspect.isroutine(entry.target):  # a loop of the user's own, which knows nothing of attempts
                entry = registry.get("function")
            if not isinstance(entry.target, type) or not callable(getattr(entry.target, "attempt", None)):
                raise UserError(
                    f"rollout.agent={name} is not an agent; an agent is a class with `async def attempt`, or "
                    "a function that asks the policy by itself"
                )
            arguments = entry.accepted(
                config=self.config,
                tools=self.tools,
                tool_settings=self.tool_settings,
                tokenizer=self.tokenizer,
                agents=self.agent,
            )
            self._agents[name] = entry.target(**arguments)
        return self._agents[name]

    async def close(self) -> None:
        """Closes tools and agents, in the loop that used them."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.tools.close)
            for agent in self._agents.values():
                if close := getattr(agent, "close", None):
                    stack.push_async_callback(close)

    def agent_for(self, task: Task) -> Agent:
        """Return the agent that will attempt this task."""
        return self.agent(self._name_for(task))

    def _name_for(self, task: Task) -> str:
        name = self.config.agent_name
        return choice(task, self.tool_settings) if name == "auto" else name

    async def openings(self) -> Callable[[Task], str]:
        """Return a function that renders a task's opening as the policy will read it, including its tools."""
        prompt_of = await self.prompts()

        def opening(task: Task) -> str:
            prompt = prompt_of(task)
            return self.tokenizer.render(prompt.messages, tools=prompt.tools, **self.config.template)

        return opening

    async def prompts(self) -> Callable[[Task], ToolPrompt]:
        """Return a function that gives a task's messages and the tools that the chat template describes.

        Tool servers are asked for their tools here. The first observation of an environment is not known yet,
        so the function only checks that the environment exists. It raises a UserError for a task that cannot
        be attempted.
        """
        schemas = await self.tools.schemas()

        def prompt(task: Task) -> ToolPrompt:
            if ":" in self._name_for(task):  # a user's own is built where it runs, and says what it says
                return ToolPrompt(task.prompt, None)
            agent = self.agent_for(task)
            try:
                if isinstance(agent, EnvironmentLoop):
                    agent.check(task)
                elif isinstance(agent, ToolUse):
                    return agent.prompt(task, schemas)
            except TaskFailure as error:
                raise UserError(str(error)) from None
            return ToolPrompt(task.prompt, None)

        return prompt
