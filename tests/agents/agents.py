"""Agents of a user's own, as files named in the configuration hold them."""

from __future__ import annotations

import asyncio
from collections import Counter

from toolwright.agents.attempt import Attempt
from toolwright.agents.formats import Offered
from toolwright.agents.formats.tags import Tags
from toolwright.agents.tool_use import ToolUse
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure, TaskFailure
from toolwright.models.tokenizer import Tokenizer
from toolwright.tools.call import Malformed, ToolRequest
from toolwright.tools.toolbox import Toolbox


class Calculator:
    """Several turns with a tool between them; a step of every two is rewarded by the environment."""

    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        while attempt.turns < attempt.max_turns:
            step = await attempt.act(anchor=f"turn {attempt.turns}", stop=["="])
            step.reward = float(attempt.turns % 2)
            attempt.count("tool_calls")
            if attempt.turns < attempt.max_turns:
                attempt.observe(f"{attempt.turns} ", source="tool")
        attempt.trajectory.stop = "turns"


class Boundless:
    """Gives its second step a reward that is no number."""

    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)
        await attempt.act()
        attempt.observe("+1=")
        (await attempt.act()).reward = float("nan")


class Unlucky:
    """`extra_info` says what goes wrong, and in how many tries; it goes wrong after the first turn."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        self.seeds: dict[str, list[int]] = {}

    async def attempt(self, attempt: Attempt) -> None:
        self.tries[attempt.id] += 1
        self.seeds.setdefault(attempt.id, []).append(attempt.trajectory.seed)
        attempt.prompt(attempt.task.prompt)
        await attempt.act()
        trouble = attempt.task.extra_info.get("trouble")
        if trouble and self.tries[attempt.id] <= attempt.task.extra_info.get("times", 1000):
            await self.meet(trouble)
        attempt.observe("+1=")
        await attempt.act()

    async def meet(self, trouble: str) -> None:
        if trouble == "hang":
            await asyncio.sleep(3600)
        if trouble == "server":
            raise InfrastructureFailure("the search server is gone")
        if trouble == "socket":
            raise TimeoutError("no answer from search:80")
        if trouble == "task":
            raise TaskFailure("this task has no answer")
        raise KeyError("a bug")


class Silent:
    async def attempt(self, attempt: Attempt) -> None:
        attempt.prompt(attempt.task.prompt)


class Hasty:
    async def attempt(self, attempt: Attempt) -> None:
        await attempt.act()


class NoAgent:
    pass


class Forced(ToolUse):
    """A tool-using agent whose every turn calls a tool, whatever a random model says: takes what it needs by
    name, as agents may."""

    def __init__(self, config: schema.RolloutConfig, tools: Toolbox, tokenizer: Tokenizer) -> None:
        super().__init__(config, tools, tokenizer)
        self.format = Always()


class Always(Tags):
    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        return [ToolRequest(next(iter(offered)), {"text": said[:5]})]
