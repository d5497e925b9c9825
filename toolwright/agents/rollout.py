"""Many attempts at once: each advances by itself, is limited, and has its failure sorted where it happens."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from toolwright.agents import registry
from toolwright.agents.attempt import Attempt, Over
from toolwright.config import schema
from toolwright.engines import Engine, Sampling
from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Failure, Task, Trajectory


@dataclass(frozen=True)
class Wanted:
    """One attempt to make."""

    task: Task
    group: str
    index: int
    seed: int


class Rollout:
    def __init__(self, config: schema.Rollout, engine: Engine, tokenizer: Tokenizer) -> None:
        self.config, self.engine, self.tokenizer = config, engine, tokenizer
        kind = registry.get(config.agent).target
        if not isinstance(kind, type) or not callable(getattr(kind, "attempt", None)):
            raise UserError(
                f"rollout.agent={config.agent} is no agent: that is a class with `async def attempt`"
            )
        self.agent = kind()
        self.sampling = Sampling(
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            max_tokens=config.max_tokens,
            stop=tuple(config.stop),
        )

    async def run(self, wanted: Sequence[Wanted], *, temperature: float | None = None) -> list[Trajectory]:
        """Every attempt, in order. One that cannot be used says so in its `failure`; a bug is raised."""
        sampling = self.sampling if temperature is None else replace(self.sampling, temperature=temperature)
        tasks = [asyncio.create_task(self._persist(one, sampling)) for one in wanted]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _persist(self, wanted: Wanted, sampling: Sampling) -> Trajectory:
        """What infrastructure lost is sampled again, from the same seed."""
        for _ in range(self.config.retries):
            trajectory = await self._try(wanted, sampling)
            if trajectory.failure is None or trajectory.failure.kind != "infrastructure":
                return trajectory
        return await self._try(wanted, sampling)

    async def _try(self, wanted: Wanted, sampling: Sampling) -> Trajectory:
        trajectory = Trajectory(wanted.task, wanted.group, index=wanted.index, seed=wanted.seed)
        own = replace(sampling, seed=wanted.seed)
        attempt = Attempt(
            trajectory,
            self.engine,
            self.tokenizer,
            own,
            max_turns=self.config.max_turns,
            environment_timeout_s=self.config.environment_timeout_s,
        )
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self.config.timeout_s) as limit:
                with suppress(Over):
                    await self.agent.attempt(attempt)
            if not trajectory.sampled_tokens:
                raise TaskFailure(f"agent {self.config.agent!r} ended without asking the policy for anything")
        except TimeoutError as error:
            message = f"attempt {attempt.id} took longer than rollout.timeout_s={self.config.timeout_s:g}"
            if not limit.expired():  # a wait of the agent's own, for a tool say
                message = f"attempt {attempt.id} waited in vain: {str(error) or 'TimeoutError'}"
            trajectory.failure = Failure("infrastructure", message)
        except InfrastructureFailure as error:
            trajectory.failure = Failure("infrastructure", str(error))
        except TaskFailure as error:
            trajectory.failure = Failure("task", str(error))
        finally:
            self.engine.release(attempt.id)
        trajectory.timings["attempt_s"] = time.perf_counter() - started
        return trajectory


def seed_of(*parts: object) -> int:
    """A seed that follows from names alone, so that nothing about it has to be stored."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
