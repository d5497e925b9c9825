"""The agents of a run by name, the tools they share, and what their attempts begin with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from toolwright.agents import Agent, registry
from toolwright.agents.auto import choice
from toolwright.agents.briefing import Briefing
from toolwright.agents.environment import EnvironmentLoop
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.failures import TaskFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task


class AgentSet:
    """Made from configuration alone: agents are built on first use, tools opened in the loop that runs."""

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
        """The agent of that name; it is given what its constructor asks for by name."""
        if name not in self._agents:
            entry = registry.get(name)
            if not isinstance(entry.target, type) or not callable(getattr(entry.target, "attempt", None)):
                raise UserError(f"rollout.agent={name} is no agent: that is a class with `async def attempt`")
            given = entry.accepted(
                config=self.config,
                tools=self.tools,
                tool_settings=self.tool_settings,
                tokenizer=self.tokenizer,
                agents=self.agent,
            )
            self._agents[name] = entry.target(**given)
        return self._agents[name]

    def agent_for(self, task: Task) -> Agent:
        """The one that will attempt this task."""
        return self.agent(self._name_for(task))

    def _name_for(self, task: Task) -> str:
        name = self.config.agent
        return choice(task, self.tool_settings) if name == "auto" else name

    async def openings(self) -> Callable[[Task], str]:
        """What gives a task's opening as the policy will read it, words about tools included. Servers that
        list their own tools are asked for them here; what an environment shows first is not known yet, but
        that there is one. A UserError for a task that cannot be attempted."""
        schemas = await self.tools.schemas()

        def opening(task: Task) -> str:
            told = Briefing(task.prompt, None)
            if ":" in self._name_for(task):  # a user's own is built where it runs, and says what it says
                return self.tokenizer.render(told.messages, **self.config.template)
            agent = self.agent_for(task)
            try:
                if isinstance(agent, ToolUse):
                    told = agent.told(task, schemas)
                elif isinstance(agent, EnvironmentLoop):
                    agent.check(task)
            except TaskFailure as error:
                raise UserError(str(error)) from None
            return self.tokenizer.render(told.messages, tools=told.tools, **self.config.template)

        return opening
