"""Runs many attempts at once. Each advances by itself, has limits, and has its failure classified where it
happens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from toolwright.agents.agent_set import AgentSet
from toolwright.agents.attempt import Attempt, AttemptEnded
from toolwright.agents.auto import choice
from toolwright.agents.prompt_cut import PromptCut
from toolwright.agents.tool_use import TOOLS
from toolwright.config import schema
from toolwright.engines import Engine, Sampling
from toolwright.failures import InfrastructureFailure, TaskFailure
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import (
    AttemptsCallback,
    Failure,
    Task,
    Trajectory,
    finite_number,
    ignore_attempts,
)

MESSAGE_KEPT = 10_000  # characters of what a failure says; an exception may carry anything


@dataclass(frozen=True)
class AttemptRequest:
    """An attempt to make."""

    task: Task
    group: str
    index: int
    seed: int
    sampling: tuple[tuple[str, float], ...] = ()  # fields of Sampling in place of the run's own


class Rollout:
    """Runs attempts. `tools` are their settings, from `toolwright.tools.settings`; they are opened in the
    running event loop. `cut` shortens prompts that are too long; None leaves them."""

    def __init__(
        self,
        config: schema.RolloutConfig,
        engine: Engine,
        tokenizer: Tokenizer,
        *,
        tools: Mapping[str, Mapping[str, Any]] | None = None,
        cut: PromptCut | None = None,
    ) -> None:
        self.config, self.engine, self.tokenizer, self.cut = config, engine, tokenizer, cut
        self.agent_set = AgentSet(config, tokenizer, tools=tools)
        self.agent = self.agent_set.agent(config.agent_name)
        self._under_way: set[Attempt] = set()
        self.sampling = Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            max_tokens=engine.context if config.max_tokens == "auto" else config.max_tokens,
            stop=tuple(config.stop),
        )

    def turns(self, tasks: Iterable[Task]) -> int:
        return most_turns(self.config, self.agent_set.tool_settings, tasks)

    def awaits(self) -> str:
        """Count the running attempts by what they wait for."""
        whom = Counter(attempt.waits_for or "their agent" for attempt in list(self._under_way))
        return ", ".join(f"{name} ({count} attempts)" for name, count in whom.most_common())

    async def close(self) -> None:
        """Closes tools and agents, in the loop that used them."""
        await self.agent_set.close()

    async def run(
        self,
        requests: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> list[Trajectory]:
        """Run all attempts and return them in order. An attempt that cannot be used says why in its
        `failure`; a bug is raised. `arrived` is called with each complete group."""
        sampling = self.sampling if temperature is None else replace(self.sampling, temperature=temperature)
        tasks = [asyncio.create_task(self._persist(one, sampling)) for one in requests]
        groups: dict[str, list[asyncio.Task[Trajectory]]] = {}
        for one, task in zip(requests, tasks, strict=True):
            groups.setdefault(one.group, []).append(task)
        for of_one in groups.values():
            _tell(of_one, arrived)
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _persist(self, request: AttemptRequest, sampling: Sampling) -> Trajectory:
        """Repeat an attempt that was lost to an infrastructure failure, with the same seed."""
        for again in range(self.config.retries):
            trajectory = await self._try(request, sampling)
            if trajectory.failure is None or trajectory.failure.kind != "infrastructure":
                return trajectory
            await asyncio.sleep(self.config.retry_pause_s * 2**again)
        return await self._try(request, sampling)

    async def _try(self, request: AttemptRequest, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(request.task, request.group, index=request.index, seed=request.seed)
        changed: dict[str, Any] = dict(request.sampling)
        own = replace(sampling, seed=request.seed, **changed)
        attempt = Attempt(
            trajectory,
            self.engine,
            self.tokenizer,
            own,
            max_turns=self.config.max_turns,
            max_total_tokens=self.config.max_total_tokens,
            template=self.config.template,
            cut=self.cut,
        )
        started = time.perf_counter()
        self._under_way.add(attempt)
        try:
            async with asyncio.timeout(self.config.timeout_s) as limit:
                attempt.limit = limit
                with suppress(AttemptEnded):
                    await self.agent.attempt(attempt)
            if not trajectory.sampled_tokens:
                raise TaskFailure(
                    f"agent {self.config.agent_name!r} ended without asking the policy for anything"
                )
            _check_rewards(self.config.agent_name, trajectory)
        except TimeoutError as error:
            if not limit.expired():  # a wait of the agent's own, for a tool say
                message = f"attempt {attempt.id} timed out: {str(error) or 'TimeoutError'}"
                trajectory.failure = Failure("infrastructure", message)
            elif attempt.waits_for.startswith(TOOLS) and trajectory.sampled_tokens:
                attempt.finish("time")  # the policy chose to call them: its attempt ends here, as it stands
            else:
                who = f" while waiting for {attempt.waits_for}" if attempt.waits_for else ""
                limit_s = f"rollout.timeout_s={self.config.timeout_s:g}"
                message = f"attempt {attempt.id} took longer than {limit_s}{who}"
                trajectory.failure = Failure("infrastructure", message)
        except InfrastructureFailure as error:
            trajectory.failure = Failure("infrastructure", str(error)[:MESSAGE_KEPT])
        except TaskFailure as error:
            trajectory.failure = Failure("task", str(error)[:MESSAGE_KEPT])
        finally:
            self._under_way.discard(attempt)
            self.engine.release(attempt.id)
            await self.agent_set.tools.end(attempt.id)
        trajectory.timings["attempt_s"] = time.perf_counter() - started
        return trajectory


def _check_rewards(agent: str, trajectory: Trajectory) -> None:
    """Check an agent's step rewards by the same rules as a scorer's."""
    for number, step in enumerate(trajectory.steps, 1):
        given = step.reward
        if given is not None and (reward := finite_number(given)) is None:
            raise TaskFailure(
                f"agent {agent!r} gave step {number} the reward {given!r:.200}, which is not a finite number"
            )
        step.reward = None if given is None else reward


def _tell(group: Sequence[asyncio.Task[Trajectory]], arrived: AttemptsCallback) -> None:
    """Call `arrived` when the last attempt of a group has ended, unless one of them raised an exception."""
    left = len(group)

    def ended(task: asyncio.Task[Trajectory]) -> None:
        nonlocal left
        if not task.cancelled() and task.exception() is None:
            left -= 1
            if not left:
                arrived([task.result() for task in group])

    for task in group:
        task.add_done_callback(ended)


def most_turns(
    config: schema.RolloutConfig, tools: Mapping[str, Mapping[str, Any]], tasks: Iterable[Task]
) -> int:
    """Return the most turns that an attempt at any of these tasks may take."""
    name = config.agent_name
    names = {choice(task, tools) for task in tasks} if name == "auto" else {name}
    return 1 if names <= {"single_turn"} else config.max_turns
