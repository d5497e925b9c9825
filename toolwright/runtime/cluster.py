"""Each role an actor of a Ray cluster; the driver holds names and references, what is large stays put."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import ray

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.learner import checkpoints
from toolwright.runtime import placement, session
from toolwright.runtime.actors import ActorSlot, Lost, LostData, open_all
from toolwright.runtime.dealing import AttemptWorker, Dealer, Quarantine, WorkerLost
from toolwright.runtime.learners import ROLES, Learners
from toolwright.runtime.placement import ActorSpec
from toolwright.runtime.publication import Publication
from toolwright.runtime.roles import Incident, LearnerLost
from toolwright.runtime.supervision import Supervisor
from toolwright.runtime.tensors import packed, unpacked
from toolwright.runtime.timeline import Event
from toolwright.runtime.transport import Array, RemoteTrajectory, TrajectoryRef
from toolwright.trajectory import Arrived, Failure, Task, Trajectory, unheard

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest
    from toolwright.config import schema

log = logging.getLogger(__name__)

CLOSING_S = 15.0  # for a role to end what it started, before its process is ended
LOOK_AGAIN_S = 0.2
TELLING_S = 10.0  # for an actor to tell what it did in a step
MOST_THREADS = 1024  # made as they are needed: all ranks have to be started at once


class RolloutWorker:
    """A rollout role at its seat, as the dealer gives work to it."""

    def __init__(self, crew: ClusterRoles, seat: ActorSlot) -> None:
        self.crew, self.seat = crew, seat

    @property
    def name(self) -> str:
        return self.seat.name

    async def attempt(self, wanted: Sequence[AttemptRequest], temperature: float | None) -> list[Trajectory]:
        seat, incarnation = self.seat, self.seat.incarnation
        told_ref, body = seat.send("rollout", "run", list(wanted), temperature, returns=2)
        try:
            with seat.awaited(f"rollout.run of {len(wanted)} attempts"):
                told = await seat.received(told_ref)
        except Lost as error:
            self.crew._replace(seat, incarnation, f"died: {error}")  # before it is dealt to again
            if ROLES & set(seat.post.roles):
                raise LearnerLost(f"{seat.name} was lost, and the engine with it: {error}") from None
            raise WorkerLost(str(error)) from None
        except asyncio.CancelledError:
            ray.cancel(told_ref)
            raise
        shipment = TrajectoryRef(body, ray.get, asked=(wanted, temperature))
        return [
            RemoteTrajectory(
                one.task, group=one.group, index=one.index, seed=one.seed, told=t, shipment=shipment, row=row
            )
            for row, (one, t) in enumerate(zip(wanted, told, strict=True))
        ]


class ClusterRoles:
    """`members` names the function that builds roles in a process; `brief` is what it builds them from."""

    def __init__(self, brief: Any, config: schema.Config, roles: Sequence[str], *, members: str) -> None:
        self.config, self.runtime = config, config.runtime
        self.run = uuid.uuid4().hex[:8]
        self.loop = asyncio.Runner()
        self.roles, self.step = list(roles), 0
        self.quarantine = Quarantine()
        self.seats: dict[str, ActorSlot] = {}
        self.workers: dict[str, RolloutWorker] = {}
        self._found: list[Incident] = []
        self._lock = threading.Lock()
        self._groups: list[Any] = []
        self._pool = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix="crew")
        self.publication = Publication(self.runtime, self._replace)
        self._numbers = self._parameters = 0
        self.supervisor: Supervisor | None = None
        self.session = session.RaySession(self.runtime, brief)
        try:
            self._open(members)
        except BaseException:
            self.close()
            raise

    def _open(self, members: str) -> None:
        self.session.open()
        self._how = {"members": members, "brief": self.session.brief, "moved": self.session.moved}
        until = time.monotonic() + self.runtime.start_timeout_s
        while not self._place(until):
            pass
        self._use_first_nodes()
        self.learners = Learners(
            list(self.seats.values()), patience_s=self.runtime.heartbeat_timeout_s, replace=self._replace
        )
        try:
            self.learners.number()
            open_all(self.seats.values(), self._pool)
            described = next(iter(self.workers.values())).seat.ask("rollout", "describe")
            self.exact, self.difference = bool(described["exact"]), described["difference"]
            if self.learners.ranks:
                self._parameters = int(self.learners.ask("describe")["parameters"])
                next(iter(self.workers.values())).seat.ask("rollout", "check_engine")
                self._publish(0)
        except (Lost, LearnerLost) as error:
            raise UserError(str(error)) from None
        self.supervisor = Supervisor(self.seats, self.runtime, self._replace)
        self.supervisor.start()

    # Who is there.

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def weights_version(self) -> int:
        return self.publication.version

    @property
    def dashboard(self) -> str | None:
        return self.session.dashboard

    def _place(self, until: float) -> bool:
        """Room for every post on the nodes that are there; False if one of them left meanwhile."""
        there = session.alive_nodes()
        nodes = [dict(node["Resources"]) for node in ray.nodes() if node["NodeID"] in there]
        self.plan = placement.plan(self.runtime.placement, self.roles, nodes)
        wanted = [posts for posts in (self.plan.fixed, self.plan.workers) if posts]
        strategy = self.runtime.placement.strategy.upper()
        for posts in wanted:
            self._groups.append(
                ray.util.placement_group(
                    **placement.bundles(posts),
                    strategy=strategy,
                    name=f"toolwright/{self.run}/{posts[0].name}",
                )
            )
        for posts, group in zip(wanted, self._groups, strict=True):
            while not group.wait(LOOK_AGAIN_S):
                if session.alive_nodes() != there:  # a node that dies is counted for some seconds more
                    self._give_room_back()
                    return False
                if time.monotonic() > until:
                    self._no_room(posts)
        for posts, group in zip(wanted, self._groups, strict=True):
            self._seat(posts, group)
        return True

    def _give_room_back(self) -> None:
        for group in self._groups:
            ray.util.remove_placement_group(group)
        self._groups.clear()

    def _no_room(self, posts: Sequence[ActorSpec]) -> NoReturn:
        wanted = ", ".join(f"{post.name} {post.bundle}" for post in posts)
        raise UserError(
            f"the cluster has no room for {wanted} within "
            f"runtime.start_timeout_s={self.runtime.start_timeout_s:g} s; it has "
            f"{ray.available_resources()} free: lower runtime.placement, or add nodes"
        )

    def _seat(
        self, posts: Sequence[ActorSpec], group: Any = None, node: str | None = None
    ) -> list[ActorSlot]:
        made = []
        for index, post in enumerate(posts):
            where = {"group": group, "bundle": index} if group is not None else {"node": node}
            seat = ActorSlot(self.run, post, self.runtime, **self._how, **where)
            self.seats[post.name] = seat
            made.append(seat)
            if "rollout" in post.roles:
                self.workers[post.name] = RolloutWorker(self, seat)
        return made

    def _use_new_nodes(self) -> list[ActorSlot]:
        """Without a fixed number of workers, every node with room for one gets what fits."""
        post = self.plan.a_node
        if post is None:
            return []
        served = {seat.node for seat in self.seats.values() if "rollout" in seat.post.roles}
        made: list[ActorSlot] = []
        for node, free in session.free_by_node(post.labels).items():
            if node in served:
                continue
            for _ in range(placement.fitting(post, free)):
                made += self._seat([placement.named(post, self._numbers)], node=node)
                self._numbers += 1
        return made

    def _use_first_nodes(self) -> None:
        """Without a worker there is no run; what the one before has left may not be free yet."""
        limit = time.monotonic() + self.runtime.start_timeout_s
        while self.plan.a_node is not None and not self._use_new_nodes():
            if time.monotonic() > limit:
                raise UserError(
                    f"no node has room for a rollout worker of {self.plan.a_node.bundle} within "
                    f"runtime.start_timeout_s={self.runtime.start_timeout_s:g} s; lower "
                    "runtime.placement.rollout, or add nodes"
                )
            time.sleep(LOOK_AGAIN_S)

    def begin(self, step: int) -> None:
        self.step = step
        alive = session.alive_nodes()
        for name, worker in list(self.workers.items()):
            if worker.seat.node is not None and worker.seat.node not in alive:
                del self.workers[name], self.seats[name]
                worker.seat.leave()
        for seat in self._use_new_nodes():
            self._note(seat, "joined with a new node", "it samples from now on", died=False)
            self._pool.submit(self._join, seat)

    def _join(self, seat: ActorSlot) -> None:
        try:
            seat.open(then=self.publication.tell, guard=self.publication.lock)
        except Exception as error:
            seat.leave()
            self._note(seat, f"could not start: {error}", "the others go on without it", died=False)

    def ready_workers(self) -> list[AttemptWorker]:
        if self.plan.colocated and not self.learners.ranks[0].ready:
            raise LearnerLost("the policy was lost, and the engine with it")
        return [worker for worker in self.workers.values() if worker.seat.ready]

    # What a step asks for.

    def check(self, tasks: Sequence[Task]) -> None:
        self.seats["reward"].ask("reward", "check", list(tasks))

    async def attempt(
        self,
        wanted: Sequence[AttemptRequest],
        *,
        temperature: float | None = None,
        arrived: Arrived = unheard,
    ) -> list[Trajectory]:
        dealer = Dealer(
            self.ready_workers,
            self.quarantine,
            room=self.config.engine.slots,
            lost=self._lost_attempts,
            patience_s=self.runtime.start_timeout_s,
        )
        try:
            return await dealer.deal(wanted, temperature, arrived)
        except InfrastructureFailure as error:
            raise UserError(str(error)) from error

    def _lost_attempts(self, worker: AttemptWorker, count: int, reason: str) -> None:
        seat = self.seats.get(worker.name)
        done = f"{count} attempts are sampled again" if count else "its attempts are dropped"
        if seat is not None:
            self._note(seat, f"was lost with attempts at hand: {reason}", done, resampled=count, died=False)

    async def score(self, trajectories: Sequence[Trajectory]) -> None:
        by_parcel: dict[int, tuple[TrajectoryRef, list[RemoteTrajectory]]] = {}
        for t in trajectories:
            if isinstance(t, RemoteTrajectory) and t.failure is None:
                by_parcel.setdefault(id(t.shipment), (t.shipment, []))[1].append(t)
        await asyncio.gather(*(self._score(*one) for one in by_parcel.values()))

    async def _score(self, shipment: TrajectoryRef, mine: Sequence[RemoteTrajectory]) -> None:
        seat = self.seats["reward"]
        while True:
            incarnation = seat.incarnation
            try:
                with seat.awaited(f"reward.score of {len(mine)} attempts"):
                    verdicts = await seat.received(seat.send("reward", "score", shipment.ref))
                break
            except Lost as error:
                self._replace(seat, incarnation, f"died: {error}")
                await asyncio.get_running_loop().run_in_executor(self._pool, self._await_again, seat)
            except LostData:
                await self._sample_again(shipment)
                await self.score(mine)
                return
        for t in mine:
            t.reward, t.reward_parts, failure = verdicts[t.row]
            t.failure = Failure(*failure) if failure else None

    async def _sample_again(self, shipment: TrajectoryRef) -> None:
        """A parcel went down with its node: the same seeds and weights give the same attempts."""
        wanted, temperature = shipment.asked
        found = await self.attempt(wanted, temperature=temperature)
        for old in shipment.rows:
            new = found[old.row]
            if isinstance(new, RemoteTrajectory):
                old.moved_to(new)
            else:
                old.failure = new.failure
        incident = Incident(
            who="a node",
            role="rollout",
            what="was lost with attempts that it kept",
            done=f"{len(found)} attempts are sampled again",
            resampled=len(found),
            died=False,
        )
        with self._lock:
            self._found.append(incident)

    def _await_again(self, seat: ActorSlot) -> None:
        seat.await_ready(self.runtime.start_timeout_s)

    def learn(
        self, trajectories: Sequence[Trajectory], step: int, *, baselines: Mapping[str, float]
    ) -> dict[str, float]:
        if self.plan.colocated and self.learners.ranks:
            self.learners.ranks[0].ask("rollout", "rest")
        while True:
            shipments, picks, rewards = _picked(trajectories)
            try:
                self.learners.ask("take", picks, rewards, *(shipment.ref for shipment in shipments))
                break
            except LostData:
                for shipment in shipments:
                    if not _here(shipment.ref):
                        self.loop.run(self._sample_again(shipment))
        metrics: dict[str, float] = self.learners.ask("learn", step, self.exact, dict(baselines))
        self._publish(step)
        return metrics

    def _publish(self, version: int) -> None:
        if self.plan.colocated:
            self.publication.publish_in_place(version, self.learners)
        else:
            seats = [worker.seat for worker in self.workers.values()]
            self.publication.publish(version, self.learners, seats)

    # What is kept.

    def save(self, folder: Path, step: int, own: Mapping[str, Any], *, keep: int) -> None:
        """Ranks write it themselves, into a folder that all of them see; for one that is alone the driver
        does, so that nobody else has to see it."""
        if self.learners.sharded:
            self.learners.ask("save", str(folder.resolve()), step, dict(own), keep)
            return
        plain, tensors = self.learners.ask("state", returns=2)
        state = unpacked(self.learners.fetched(tensors))
        checkpoints.save(folder, step, {**plain, **own}, state, keep=keep)

    def settle(self) -> None:
        if self.learners.sharded:
            self.learners.ask("settle")

    def restore(self, path: Path, *, version: int) -> None:
        if self.learners.sharded:
            self.learners.ask("restore_from", str(path.resolve()))
        else:
            plain, tensors = checkpoints.load(path)
            state = packed(tensors)
            if "reference" in self.seats and "reference" in state:
                self._remind_reference(state["reference"])
            self.learners.ask("restore", plain, ray.put(state))
        self._publish(version)

    def _remind_reference(self, state: Any) -> None:
        """One that comes back after it died is to be what it was."""
        kept = ray.put(state)
        self.seats["reference"].memory["state"] = lambda seat: seat.result(
            seat.send("reference", "load_state_dict", kept, early=True), self.runtime.publish_timeout_s
        )

    def renew(self) -> None:
        self.learners.renew(self._pool)
        self._publish(0)

    def export(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in self.learners.ask("export").items():
            (folder / name).write_bytes(content)  # numpy's own way does not tell why it could not

    def record(self, path: Path, trajectories: Sequence[Trajectory]) -> None:
        from toolwright.runtime.recording import write

        write(path, trajectories)

    def events(self) -> list[Event]:
        """An actor that has died since takes what it did to its grave."""
        refs = {ref: None for s in list(self.seats.values()) if s.ready for ref in [s.drain()] if ref}
        done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=TELLING_S) if refs else ([], [])
        events: list[Event] = []
        for ref in done:
            try:
                events += ray.get(ref)
            except ray.exceptions.RayError:
                continue
        with self._lock:
            self._found += [
                Incident(event.who, "sandbox", f"saw that {event.died}", "it was started again")
                for event in events
                if event.died
            ]
        return sorted((e for e in events if not e.died), key=lambda event: event.started)

    # When something goes wrong.

    def incidents(self) -> list[Incident]:
        with self._lock:
            found, self._found = self._found, []
        return found

    def _note(
        self, seat: ActorSlot, what: str, done: str, *, resampled: int = 0, died: bool = True, stack: str = ""
    ) -> None:
        incident = Incident(
            who=seat.described,
            role=seat.post.roles[0],
            what=what,
            done=done,
            resampled=resampled,
            died=died,
            stack=stack,
        )
        with self._lock:
            self._found.append(incident)
        log.warning("%s", incident.line)

    def _replace(self, seat: ActorSlot, incarnation: int, what: str, stack: str = "") -> None:
        """A new process in place of one that died or has to; whoever notices first sees to it."""
        if not seat.give_up(incarnation):
            return
        for_good = ROLES & set(seat.post.roles)
        gone = seat.node is not None and seat.node not in session.alive_nodes()
        done = "the run goes back to its last checkpoint" if for_good else "it is replaced"
        self._note(seat, what, "its node is gone as well" if gone else done, stack=stack)
        seat.end()
        if for_good or gone:
            return
        self._pool.submit(self._revive, seat)

    def _revive(self, seat: ActorSlot) -> None:
        after = self.publication.tell if "rollout" in seat.post.roles else None
        for _ in range(3):
            try:
                seat.open(then=after, guard=self.publication.lock)
                return
            except Lost as error:
                self._note(seat, f"did not come back: {error}", "it is tried again")
                seat.end()
            except Exception as error:
                self._note(seat, f"did not come back: {error}", "it is not tried again", died=False)
                break
        seat.leave()

    def close(self) -> None:
        if self.supervisor is not None:
            self.supervisor.stop()
        seats = list(self.seats.values())
        refs = [ref for ref in (seat.farewell() for seat in seats if seat.ready) if ref is not None]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=CLOSING_S)
        for seat in seats:
            seat.leave()
        self.publication.forget()
        self._give_room_back()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.loop.close()
        self.session.close()


def _picked(trajectories: Sequence[Trajectory]) -> tuple[list[TrajectoryRef], Array, Array]:
    """The parcels that these lie in; which parcel and row each is, in order; and their rewards."""
    parcels: dict[int, int] = {}
    shipments: list[TrajectoryRef] = []
    picks = np.empty((len(trajectories), 2), dtype=np.int32)
    rewards = np.empty(len(trajectories), dtype=np.float64)
    for place, t in enumerate(trajectories):
        if not isinstance(t, RemoteTrajectory):
            raise TypeError("a crew learns from attempts of its own workers")
        if id(t.shipment) not in parcels:
            parcels[id(t.shipment)] = len(shipments)
            shipments.append(t.shipment)
        picks[place] = parcels[id(t.shipment)], t.row
        rewards[place] = t.reward or 0.0
    return shipments, picks, rewards


def _here(ref: Any) -> bool:
    """Whether an object can still be had."""
    try:
        ray.get(ref)
    except ray.exceptions.RayError:
        return False
    return True
