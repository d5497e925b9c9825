"""A step's attempts dealt to workers, by group; what a worker takes with it when it dies is dealt again.

The same attempt has the same seed wherever it is sampled, so nobody can tell from a trajectory that its first
worker was lost. A task at hand at two deaths, the second time alone with its worker, is held to be the cause:
it is dealt no more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from toolwright.failures import InfrastructureFailure
from toolwright.trajectory import Arrived, Failure, Trajectory, unheard

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest

CHUNKS_EACH = 4  # for every worker at first, so that the quick take over from the slow
LOOK_AGAIN_S = 0.2  # for workers that have come back


class WorkerLost(Exception):
    """Its process is gone, and the attempts that it had with it."""


class AttemptWorker(Protocol):
    @property
    def name(self) -> str: ...

    async def attempt(
        self, wanted: Sequence[AttemptRequest], temperature: float | None
    ) -> list[Trajectory]: ...


@dataclass(eq=False)
class AttemptChunk:
    places: list[int]  # of its attempts among all that were wanted
    suspect: bool = False  # was at hand when a worker died: is dealt alone


@dataclass
class Quarantine:
    """Tasks that killed their workers, by id, and the message that their attempts fail with."""

    tasks: dict[str, str] = field(default_factory=dict)


class Dealer:
    """`workers` lists those that can be given work now; `lost` hears of attempts that are dealt again;
    `nobody` says who is being waited for when there is no worker at all, or raises."""

    def __init__(
        self,
        workers: Callable[[], Sequence[AttemptWorker]],
        quarantine: Quarantine,
        *,
        room: int,
        lost: Callable[[AttemptWorker, int, str], None],
        patience_s: float,
    ) -> None:
        self.workers, self.quarantine, self.room = workers, quarantine, room
        self.lost, self.patience_s = lost, patience_s

    async def deal(
        self, wanted: Sequence[AttemptRequest], temperature: float | None, arrived: Arrived = unheard
    ) -> list[Trajectory]:
        """Every attempt, in order. `arrived` hears of whole groups as workers bring them."""
        table = _Table(self, wanted, temperature, arrived)
        try:
            return await table.play()
        finally:
            await table.leave()


class _Table:
    """One round of dealing."""

    def __init__(
        self, dealer: Dealer, wanted: Sequence[AttemptRequest], temperature: float | None, arrived: Arrived
    ) -> None:
        self.dealer, self.wanted, self.temperature, self.arrived = dealer, wanted, temperature, arrived
        self.results: list[Trajectory | None] = [None] * len(wanted)
        self.waiting: deque[AttemptChunk] = deque()
        self.flying: dict[asyncio.Task[list[Trajectory]], tuple[AttemptChunk, AttemptWorker]] = {}

    async def play(self) -> list[Trajectory]:
        self._cut()
        idle_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self.waiting or self.flying:
            self._give_out()
            if not self.flying:
                idle_since = idle_since or clock()
                if clock() - idle_since > self.dealer.patience_s:
                    raise InfrastructureFailure(
                        f"there has been no rollout worker for {self.dealer.patience_s:g} s "
                        "(runtime.start_timeout_s); log.txt tells how they were lost"
                    )
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            idle_since = None
            limit = LOOK_AGAIN_S if self.waiting else None
            done, _ = await asyncio.wait(self.flying, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._settle(task)
        return [result for result in self.results if result is not None]

    async def leave(self) -> None:
        for task in self.flying:
            task.cancel()
        await asyncio.gather(*self.flying, return_exceptions=True)

    def _cut(self) -> None:
        """Whole groups to a chunk: attempts at one task share its prompt's computation."""
        groups: dict[str, list[int]] = {}
        for place, one in enumerate(self.wanted):
            reason = self.dealer.quarantine.tasks.get(one.task.id)
            if reason is not None:
                self._fail(place, reason)
            else:
                groups.setdefault(one.group, []).append(place)
        parts = list(groups.values())
        size = max(1, -(-len(parts) // (CHUNKS_EACH * max(1, len(self.dealer.workers())))))
        for start in range(0, len(parts), size):
            self.waiting.append(AttemptChunk([p for part in parts[start : start + size] for p in part]))

    def _give_out(self) -> None:
        while self.waiting:
            chunk = self.waiting[0]
            load = dict.fromkeys(self.dealer.workers(), 0)
            alone = set()
            for at_hand, worker in self.flying.values():
                if worker in load:
                    load[worker] += len(at_hand.places)
                    if at_hand.suspect:
                        alone.add(worker)
            open_to = [
                worker
                for worker, count in load.items()
                if worker not in alone
                and (count == 0 or (not chunk.suspect and count + len(chunk.places) <= self.dealer.room))
            ]
            if not open_to:
                return
            worker = min(open_to, key=lambda w: load[w])
            self.waiting.popleft()
            work = worker.attempt([self.wanted[p] for p in chunk.places], self.temperature)
            self.flying[asyncio.ensure_future(work)] = (chunk, worker)

    def _settle(self, task: asyncio.Task[list[Trajectory]]) -> None:
        chunk, worker = self.flying.pop(task)
        try:
            found = task.result()
        except WorkerLost as error:
            self._again(chunk, worker, str(error))
            return
        for place, trajectory in zip(chunk.places, found, strict=True):
            self.results[place] = trajectory
        self.arrived(found)

    def _again(self, chunk: AttemptChunk, worker: AttemptWorker, reason: str) -> None:
        groups: dict[str, list[int]] = {}
        for place in chunk.places:
            groups.setdefault(self.wanted[place].group, []).append(place)
        if chunk.suspect:
            task = self.wanted[chunk.places[0]].task
            message = f"task {task.id} is in quarantine: it killed its worker twice ({worker.name}: {reason})"
            self.dealer.quarantine.tasks[task.id] = message
            for place in chunk.places:
                self._fail(place, message)
            self.dealer.lost(worker, 0, message)
            return
        self.dealer.lost(worker, len(chunk.places), reason)
        self.waiting.extendleft(AttemptChunk(places, suspect=True) for places in reversed(groups.values()))

    def _fail(self, place: int, reason: str) -> None:
        one = self.wanted[place]
        failed = Trajectory(one.task, one.group, index=one.index, seed=one.seed)
        failed.failure = Failure("task", reason)
        self.results[place] = failed
