"""The roles of a run as actors of a Ray cluster. The driver holds references only; large data stays where it
is."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.record import TokenValues
from toolwright.rewards.builder import reserved_gpus
from toolwright.runtime.actor_placement import ActorPlacer
from toolwright.runtime.actor_pool import ActorPool
from toolwright.runtime.actors import ActorSlot, Lost, LostData, open_all
from toolwright.runtime.learners import LEARNING, RayLearners
from toolwright.runtime.placement import ActorPlace, ActorSpec
from toolwright.runtime.roles import Incident, LearnerLost, Rewards, Roles, Rollouts
from toolwright.runtime.scheduling import AttemptScheduler, AttemptWorker, WorkerLost
from toolwright.runtime.session import RaySession
from toolwright.runtime.timeline import Event
from toolwright.runtime.transport import RemoteTrajectory, TrajectoryRef, save
from toolwright.trajectory import AttemptsCallback, Failure, Task, Trajectory, ignore_attempts

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest
    from toolwright.config import schema


class RayRoles(Roles):
    """`builder` names the function that builds roles in a process, from `role_config`."""

    def __init__(self, builder: str, role_config: Any, names: Sequence[str]) -> None:
        config: schema.Config = role_config.config
        run = uuid.uuid4().hex[:8]
        self.loop = asyncio.Runner()
        self.session = RaySession(config.runtime, role_config)

        def new_slot(spec: ActorSpec, place: ActorPlace) -> ActorSlot:
            own = {"role_config": self.session.role_config, "moved": self.session.moved}
            return ActorSlot(run, spec, place, config.runtime, builder=builder, **own)

        placer = ActorPlacer(run, config.runtime, names, reward_gpus=reserved_gpus(config.reward))
        self.pool = ActorPool(config.runtime, placer, new_slot)
        try:
            self._open(config)
        except BaseException:
            self.close()
            raise

    def _open(self, config: schema.Config) -> None:
        self.session.open()
        self.dashboard = self.session.cluster.dashboard
        self.pool.place()
        self.learners: RayLearners = RayLearners(
            list(self.pool.slots.values()),
            patience_s=config.runtime.heartbeat_timeout_s,
            replace=self.pool.replace,
            resample=lambda table: self.loop.run(self.rollouts.sample_again(table)),
            threads=self.pool.threads,
        )
        self.rollouts: RayRollouts = RayRollouts(config, self.pool, self.learners)
        self.rewards: RayRewards = RayRewards(self.pool, self.rollouts)
        try:
            self.learners.number()
            open_all(self.pool.slots.values(), self.pool.threads)
            self.rollouts.description  # noqa: B018 - asked for now, while all workers are there
            if self.learners.ranks:
                self.learners.parameters  # noqa: B018
                self.pool.rollout_slots[0].ask("rollout", "check_engine")
                self.rollouts.publish(0)
        except (Lost, LearnerLost) as error:
            raise UserError(str(error)) from None
        self.pool.supervise()

    def begin(self, step: int) -> None:
        self.pool.use_new_nodes()

    def events(self) -> list[Event]:
        return self.pool.events()

    def incidents(self) -> list[Incident]:
        return self.pool.incidents()

    def close(self) -> None:
        self.pool.close()
        self.loop.close()
        self.session.close()


@dataclass(frozen=True)
class RolloutWorker:
    """A rollout role in its actor, as the scheduler sees it."""

    pool: ActorPool
    slot: ActorSlot

    @property
    def name(self) -> str:
        return self.slot.name

    async def attempt(
        self, requests: Sequence[AttemptRequest], temperature: float | None
    ) -> list[Trajectory]:
        slot, incarnation = self.slot, self.slot.incarnation
        # Ray packs each item of a list on its own, and a tuple whole.
        summaries_ref, table_ref = slot.send("rollout", "run", tuple(requests), temperature, returns=2)
        try:
            with slot.awaited(f"rollout.run of {len(requests)} attempts"):
                summaries = await slot.received(summaries_ref)
        except Lost as error:
            self.pool.replace(slot, incarnation, f"died: {error}")  # before it is given work again
            if LEARNING & set(slot.spec.roles):
                raise LearnerLost(f"{slot.name} was lost, and the engine with it: {error}") from None
            raise WorkerLost(str(error)) from None
        except asyncio.CancelledError:
            ray.cancel(summaries_ref)
            raise
        table = TrajectoryRef(table_ref, ray.get, request=(requests, temperature))
        return [
            RemoteTrajectory(r.task, summary, ref=table, row=row)
            for row, (r, summary) in enumerate(zip(requests, summaries, strict=True))
        ]


class RayRollouts(Rollouts):
    """Runs attempts on the rollout workers that are ready."""

    def __init__(self, config: schema.Config, pool: ActorPool, learners: RayLearners) -> None:
        self.config, self.pool, self.learners = config, pool, learners
        self.quarantine: dict[str, str] = {}

    @cached_property
    def description(self) -> dict[str, Any]:
        found: dict[str, Any] = self.pool.rollout_slots[0].ask("rollout", "describe")
        return found

    @property
    def weights_version(self) -> int:
        return self.pool.publication.version

    @property
    def colocated(self) -> bool:
        return self.pool.placer.plan.colocated

    def cache_use(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for slot in self.pool.rollout_slots:
            if not slot.ready:
                continue
            with suppress(Lost, InfrastructureFailure):  # whoever supervises it has its end to tell
                for name, value in slot.ask("rollout", "cache_use").items():
                    join = sum if name.endswith("_suspended") else max
                    found[name] = join((found.get(name, 0.0), value))
        return found

    def ready_workers(self) -> list[AttemptWorker]:
        if self.colocated and not self.learners.ranks[0].ready:
            raise LearnerLost("the policy was lost, and the engine with it")
        return [RolloutWorker(self.pool, slot) for slot in self.pool.rollout_slots if slot.ready]

    async def attempt(
        self,
        requests: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> list[Trajectory]:
        scheduler = AttemptScheduler(
            requests,
            temperature,
            self.ready_workers,
            self.quarantine,
            room=self.config.engine.slots,
            lost=self._lost_attempts,
            patience_s=self.config.runtime.start_timeout_s,
            arrived=arrived,
        )
        try:
            return await scheduler.run()
        except InfrastructureFailure as error:
            raise UserError(str(error)) from error

    def _lost_attempts(self, worker: AttemptWorker, count: int, reason: str) -> None:
        slot = self.pool.slots.get(worker.name)
        done = f"{count} attempts are sampled again" if count else "its attempts are dropped"
        if slot is not None:
            what = f"was lost with attempts at hand: {reason}"
            self.pool.note(slot, what, done, resampled=count, died=False)

    async def sample_again(self, table: TrajectoryRef) -> None:
        """Sample the attempts of a lost table again. The same seeds and weights give the same attempts."""
        requests, temperature = table.request
        found = await self.attempt(requests, temperature=temperature)
        for old in table.rows:
            new = found[old.row]
            if isinstance(new, RemoteTrajectory):
                old.move_to(new)
            else:
                old.failure = new.failure
        self.pool.add(
            Incident(
                who="a node",
                role="rollout",
                what="was lost with attempts that it kept",
                done=f"{len(found)} attempts are sampled again",
                resampled=len(found),
                died=False,
            )
        )

    def rest(self) -> None:
        if self.colocated and self.learners.ranks:
            self.learners.ranks[0].ask("rollout", "rest")

    def publish(self, version: int) -> None:
        if self.colocated:
            self.pool.publication.publish_in_place(version, self.learners)
        else:
            self.pool.publication.publish(version, self.learners, self.pool.rollout_slots)

    def record(
        self, path: Path, trajectories: Sequence[Trajectory], values: Sequence[TokenValues] = ()
    ) -> None:
        save(path, trajectories, values)


class RayRewards(Rewards):
    """The reward role in its actor. If the actor dies, each waiting call is repeated on its replacement."""

    def __init__(self, pool: ActorPool, rollouts: RayRollouts) -> None:
        self.pool, self.rollouts = pool, rollouts

    @property
    def slot(self) -> ActorSlot:
        return self.pool.slots["reward"]

    def check(self, tasks: Sequence[Task]) -> None:
        self.slot.ask("reward", "check", list(tasks))

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        by_table: dict[TrajectoryRef, list[RemoteTrajectory]] = {}
        for t in trajectories:
            if isinstance(t, RemoteTrajectory) and t.failure is None:
                by_table.setdefault(t.ref, []).append(t)
        await asyncio.gather(*(self._score(*one) for one in by_table.items()))

    async def _score(self, table: TrajectoryRef, attempts: Sequence[RemoteTrajectory]) -> None:
        slot = self.slot
        while True:
            incarnation = slot.incarnation
            try:
                with slot.awaited(f"reward.score of {len(attempts)} attempts"):
                    verdicts = await slot.received(slot.send("reward", "score", table.object_ref))
                break
            except Lost as error:
                self.pool.replace(slot, incarnation, f"died: {error}")
                limit_s = slot.config.start_timeout_s
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self.pool.threads, slot.await_ready, limit_s)
            except LostData:
                await self.rollouts.sample_again(table)
                await self.score(attempts)
                return
        for t in attempts:
            t.reward, t.reward_parts, t.step_rewards, failure = verdicts[t.row]
            t.failure = Failure(*failure) if failure else None
