"""Environments behind a server of OpenEnv, played through its own client."""

from __future__ import annotations

import json
from typing import Any

from toolwright.failures import extra
from toolwright.tasks import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import register_worlds
from toolwright.trajectory import Task


@ENVIRONMENTS.register("openenv")
class OpenEnv:
    """A session with the server at `url`. The policy's words are the field `action` of an action, or all of
    it as JSON. It reads the field `observation`, or all of it."""

    success_reward = 1.0

    def __init__(self, url: str, seed: int, action: str = "", observation: str = "") -> None:
        with extra("openenv", needed_by="task 'openenv'"):
            from openenv.core.generic_client import GenericEnvClient
        self.client, self.seed = GenericEnvClient(base_url=url), seed
        self.action, self.observation = action, observation

    async def reset(self, task: Task) -> Observation:
        return Observation(self._shown((await self.client.reset(seed=self.seed)).observation))

    async def step(self, action: str) -> Outcome:
        try:
            result = await self.client.step({self.action: action} if self.action else json.loads(action))
        except (ValueError, TypeError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "VALIDATION_ERROR" not in str(error):
                raise  # the server's own fault
            raise InvalidAction(str(error)) from None
        return Outcome(self._shown(result.observation), float(result.reward or 0.0), result.done)

    async def close(self) -> None:
        await self.client.close()

    def _shown(self, observation: dict[str, Any]) -> str:
        value = observation.get(self.observation, "") if self.observation else observation
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


register_worlds("openenv", OpenEnv)
