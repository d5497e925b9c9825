"""An environment with tools of its own: the policy calls them and talks to its user, turn by turn."""

from __future__ import annotations

from contextlib import suppress

from toolwright.agents import formats, registry
from toolwright.agents.attempt import Attempt, AttemptEnded
from toolwright.agents.environment import settings_of
from toolwright.agents.formats import Offered, Schemas
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.tool_use import ToolUse, opens_thought
from toolwright.config import schema
from toolwright.failures import TaskFailure
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import InvalidAction
from toolwright.tasks.environment_host import EnvironmentHost
from toolwright.tools.call import ToolRequest, ToolResult
from toolwright.tools.toolbox import Toolbox, without_surrogates
from toolwright.trajectory import OUTCOME, Segment, Task


@registry.register("tool_environment")
class ToolEnvironmentLoop(ToolUse):
    """Tool use with the schemas of `extra_info.tools`, answered by the task's environment.

    `turns` among the environment's settings: the most that this task allows, if fewer than the run's.
    """

    def __init__(self, config: schema.RolloutConfig, tools: Toolbox, tokenizer: Tokenizer) -> None:
        super().__init__(config, tools, tokenizer)
        self._hosts: dict[Attempt, EnvironmentHost] = {}

    async def attempt(self, attempt: Attempt) -> None:
        settings = settings_of(attempt.task)
        most = min(attempt.max_turns, int(settings.pop("turns", attempt.max_turns)))
        host = self._hosts[attempt] = EnvironmentHost(settings, limit_s=self.config.environment_timeout_s)
        attempt.count("success", 0)
        attempt.count("tool_calls", 0)
        try:
            with suppress(AttemptEnded):
                await self._play(attempt, host, most)
            await self._judge(attempt, host)
        finally:
            del self._hosts[attempt]
            await host.close()

    async def _play(self, attempt: Attempt, host: EnvironmentHost, most: int) -> None:
        with attempt.waiting(f"environment {host.name}"):
            seen = await host.reset(attempt.task)
        offered = formats.offered_by(self.offered(attempt.task, ()))
        prompt = self.prompt(attempt.task, ())
        shown = [{"role": "user", "content": seen.text}] if seen.text else []
        attempt.prompt([*prompt.messages, *shown], tools=prompt.tools)
        stop = (*self.config.stop, *(self.format.stop(offered) if offered else ()))
        thinking = opens_thought(attempt)
        while True:
            step = await attempt.act(stop=stop)
            said, thinking = spoken(step.text, thinking=thinking)
            if attempt.trajectory.cut:
                return
            calls = self.near_misses.read(said, offered) if offered else []
            goes_on = self._goes_on(attempt, calls)
            answers = await self._run(attempt, calls, offered) if calls and goes_on else []
            user = "" if goes_on else await self._user(attempt, host, said)
            if user is None or attempt.turns >= most:
                if answers:
                    records = [one.record for one in answers]
                    text = "\n".join(one.text for one in answers)  # for readers: it costs no tokens
                    attempt.trajectory.append(Segment("tool", [], text=text, calls=records))
                attempt.finish("done" if user is None else "turns")
                return
            if answers:
                self._tell(attempt, answers)
            elif not goes_on:
                attempt.reply([{"role": "user", "content": user}], source="environment")
            thinking = thinking or opens_thought(attempt)

    async def _user(self, attempt: Attempt, host: EnvironmentHost, said: str) -> str | None:
        """What the user answers; None: that was all."""
        with attempt.waiting(f"environment {host.name}"):
            outcome = await host.step(said.strip())
        return None if outcome.done else outcome.text

    async def _call(self, attempt: Attempt, one: ToolRequest, offered: Offered) -> ToolResult:
        """The environment hears of every call; the policy reads of our near misses where there is no tool."""
        try:
            text = await self._hosts[attempt].call(one.name, without_surrogates(one.arguments))
            return ToolResult(without_surrogates(text))
        except InvalidAction as error:
            if one.name in offered:
                return ToolResult(str(error), "raised", error.reward or None)
            return ToolResult(self.near_misses.unknown(one.name, offered), "unknown_tool")

    async def _judge(self, attempt: Attempt, host: EnvironmentHost) -> None:
        with attempt.waiting(f"environment {host.name}"):
            outcome = await host.verdict()
        attempt.trajectory.steps[-1].reward = float(outcome.reward)
        attempt.count("success", bool(outcome.info.get("success")))
        for name, value in outcome.info.items():
            if name != "success" and isinstance(value, int | float):
                attempt.count(f"{OUTCOME}{name}", float(value))
        if outcome.text:
            attempt.trajectory.append(Segment("environment", [], text=outcome.text))

    def offered(self, task: Task, schemas: Schemas) -> Schemas:
        own = task.extra_info.get("tools")
        if own is None or not all(isinstance(one, dict) and "function" in one for one in own):
            raise TaskFailure(
                f"task {task.id}: rollout.agent=tool_environment reads the tools of the environment from "
                'extra_info["tools"], as schemas in OpenAI\'s form: {"type": "function", "function": …}'
            )
        return list(own)
