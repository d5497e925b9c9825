"""Tool use with a simulated user, who answers whenever the policy ends its turn without a call."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.agents import registry
from toolwright.agents.attempt import Attempt
from toolwright.agents.formats.thinking import spoken
from toolwright.agents.tool_use import CompletedCall, ToolUse
from toolwright.config import schema
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks.interaction import KEY, Interaction, class_of
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Segment, Task


@dataclass(frozen=True)
class UserSession:
    """The conversation of an attempt with its simulated user."""

    user: Interaction
    arguments: dict[str, Any]
    messages: list[dict[str, Any]]


@registry.register("interaction")
class InteractionLoop(ToolUse):
    """The loop with a user. The task names the user: `extra_info.interaction`. The user's score of a turn is
    the reward of that step, and the task's scorer judges the whole."""

    def __init__(self, config: schema.RolloutConfig, tools: Toolbox, tokenizer: Tokenizer) -> None:
        super().__init__(config, tools, tokenizer)
        self._users: dict[str, Interaction] = {}
        self._sessions: dict[str, UserSession] = {}

    async def attempt(self, attempt: Attempt) -> None:
        settings = settings_of(attempt.task)
        session = UserSession(
            self._user(settings), dict(settings.get("arguments") or {}), list(attempt.task.prompt)
        )
        await self._said(attempt, session.user.start_interaction(attempt.id, **session.arguments))
        self._sessions[attempt.id] = session
        try:
            await super().attempt(attempt)
        finally:
            del self._sessions[attempt.id]
            await session.user.finalize_interaction(attempt.id)

    async def answered(self, attempt: Attempt, step: Segment) -> bool:
        if attempt.trajectory.cut:
            return False
        session = self._sessions[attempt.id]
        session.messages.append({"role": "assistant", "content": spoken(step.text)[0]})
        over, text, score, _ = await self._said(
            attempt, session.user.generate_response(attempt.id, session.messages, **session.arguments)
        )
        attempt.count("user_turns")
        step.reward = float(score)
        if over or attempt.turns >= attempt.max_turns:
            attempt.finish("done" if over else "turns")
            return False
        reply = {"role": "user", "content": self._fit(str(text))}
        session.messages.append(reply)
        attempt.reply([reply], source="environment")
        return True

    def _tell(
        self,
        attempt: Attempt,
        answers: Sequence[CompletedCall],
        then: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        said = attempt.trajectory.steps[-1].text
        self._sessions[attempt.id].messages.extend(
            [
                {"role": "assistant", "content": spoken(said)[0]},
                *({"role": "tool", "content": one.text} for one in answers),
            ]
        )
        super()._tell(attempt, answers, then)

    async def _said(self, attempt: Attempt, answer: Awaitable[Any]) -> Any:
        """Ask the user for a reply, within the time limit of a tool. An error in the user's code never counts
        as a score."""
        try:
            with attempt.waiting("the simulated user"):
                return await asyncio.wait_for(answer, self.config.tool_timeout_s)
        except (InfrastructureFailure, TaskFailure, UserError):
            raise
        except TimeoutError:
            limit = f"{self.config.tool_timeout_s:g} s (rollout.tool_timeout_s)"
            raise InfrastructureFailure(f"the simulated user took longer than {limit}") from None
        except Exception as error:
            raise TaskFailure(f"the simulated user failed: {type(error).__name__}: {error}") from error

    def _user(self, settings: dict[str, Any]) -> Interaction:
        """Return the user object of this class and configuration. All attempts share it."""
        key = json.dumps([settings["class"], settings.get("config")], sort_keys=True)
        if key not in self._users:
            target: Any = class_of(settings["class"])
            self._users[key] = target(config=dict(settings.get("config") or {}))
        return self._users[key]


def settings_of(task: Task) -> dict[str, Any]:
    settings = task.extra_info.get(KEY)
    if not isinstance(settings, dict) or "class" not in settings:
        raise UserError(
            f"task {task.id} names no simulated user: rollout.agent=interaction reads it from "
            f'extra_info["{KEY}"]; task.params.interactions=FILE puts it there'
        )
    return settings
