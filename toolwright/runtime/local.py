"""Every role in this process: nothing is sent, nothing is copied, and a breakpoint anywhere works."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolwright.learner import checkpoints
from toolwright.runtime.roles import Incident
from toolwright.runtime.timeline import Event, Stages
from toolwright.trajectory import Arrived, Task, Trajectory, save, unheard

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest
    from toolwright.trainer.members import RoleContext


class LocalRoles:
    """The roles over one model: policy and engine use the very same tensors."""

    def __init__(self, place: RoleContext, *, learns: bool = True) -> None:
        self.stages = Stages("local")
        self.place, self.stack = place, ExitStack()
        self.loop = asyncio.Runner()
        self.stack.callback(self.loop.close)
        try:
            self.engine = place.engine
            self.stack.callback(lambda: self.loop.run(self.engine.close()))
            self.rollout = place.rollout(self.stack)
            self.stack.callback(lambda: self.loop.run(self.rollout.close()))
            if learns:
                place.check_engine()
                self.learner = place.learner()
            self.scorer = place.scorer()  # last: it may be a process of its own
            self.stack.callback(self.scorer.close)  # first to go: the loop would wait for a score that hangs
        except BaseException:
            self.stack.close()
            raise

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.learner.policy.decoder.parameters())

    @property
    def weights_version(self) -> int:
        return self.engine.weights_version

    @property
    def dashboard(self) -> str | None:
        return None

    @property
    def difference(self) -> float | None:
        return getattr(self.engine, "difference", None)

    def check(self, tasks: Sequence[Task]) -> None:
        self.scorer.check(tasks)

    def begin(self, step: int) -> None:
        """Nothing changes between steps: there is only this process."""

    async def attempt(
        self,
        wanted: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: Arrived = unheard,
    ) -> list[Trajectory]:
        with self.stages.stage("rollout.run"):
            return await self.rollout.run(wanted, temperature=temperature, arrived=arrived)

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        with self.stages.stage("reward.score"):
            await self.scorer.score([t for t in trajectories if t.failure is None])

    def learn(
        self, trajectories: Sequence[Trajectory], step: int, *, baselines: Mapping[str, float]
    ) -> dict[str, float]:
        self.engine.rest()
        with self.stages.stage("policy.learn"):
            metrics = self.learner.learn(trajectories, step, exact=self.engine.exact, baselines=baselines)
        self.engine.publish(step)
        return metrics

    def save(self, folder: Path, step: int, own: Mapping[str, Any], *, keep: int) -> None:
        plain, tensors = self.learner.state()
        checkpoints.save(folder, step, {**plain, **own}, tensors, keep=keep)

    def settle(self) -> None:
        """A checkpoint is in its place when `save` returns."""

    def restore(self, path: Path, *, version: int) -> None:
        self.learner.restore(*checkpoints.load(path))
        self.engine.publish(version)

    def renew(self) -> None:
        """Nothing that learns is lost without this process."""

    def export(self, folder: Path) -> None:
        self.place.export(folder, self.learner)

    def record(self, path: Path, trajectories: Sequence[Trajectory]) -> None:
        save(path, trajectories)

    def events(self) -> list[Event]:
        return self.stages.drain()

    def incidents(self) -> list[Incident]:
        told, self.place.survived[:] = list(self.place.survived), []
        return [Incident("the run", "sandbox", what, "it was started again") for what in told]

    def close(self) -> None:
        """All of it, also where one of them fails to."""
        self.stack.close()
