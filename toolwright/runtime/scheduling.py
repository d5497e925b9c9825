"""Schedules a step's attempts over workers, group by group, and repeats those of a worker that died.

The same attempt has the same seed on every worker, so a trajectory does not show that its first worker was
lost. A task that was running at two deaths, the second time alone on its worker, is taken to be the cause and
is not scheduled again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from toolwright.failures import InfrastructureFailure
from toolwright.trajectory import AttemptsCallback, Failure, Trajectory, ignore_attempts

if TYPE_CHECKING:
    from toolwright.agents.rollout import AttemptRequest

CHUNKS_EACH = 4  # for every worker at first, so that the quick take over from the slow
LOOK_AGAIN_S = 0.2  # for workers that have come back


class WorkerLost(Exception):
    """The worker's process is gone, with the attempts that it had."""


class AttemptWorker(Protocol):
    @property
    def name(self) -> str: ...

    async def attempt(
        self, requests: Sequence[AttemptRequest], temperature: float | None
    ) -> list[Trajectory]: ...


@dataclass(eq=False)
class AttemptChunk:
    places: list[int]  # of its attempts among all requests
    suspect: bool = False  # was running when a worker died: is run alone


@dataclass
class Quarantine:
    """Tasks that killed their workers, by id, with the message that their attempts fail with."""

    tasks: dict[str, str] = field(default_factory=dict)


class AttemptScheduler:
    """`workers` lists those that can take work now. `lost` is called for attempts that are repeated."""

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

    async def run(
        self,
        requests: Sequence[AttemptRequest],
        temperature: float | None,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> list[Trajectory]:
        """Run all attempts and return them in order. `arrived` is called with whole groups as workers finish
        them."""
        batch = _ScheduledBatch(self, requests, temperature, arrived)
        try:
            return await batch.run()
        finally:
            await batch.cancel()


class _ScheduledBatch:
    """The attempts of one call of `run`."""

    def __init__(
        self,
        scheduler: AttemptScheduler,
        requests: Sequence[AttemptRequest],
        temperature: float | None,
        arrived: AttemptsCallback,
    ) -> None:
        self.scheduler, self.requests = scheduler, requests
        self.temperature, self.arrived = temperature, arrived
        self.results: list[Trajectory | None] = [None] * len(requests)
        self.waiting: deque[AttemptChunk] = deque()
        self.in_flight: dict[asyncio.Task[list[Trajectory]], tuple[AttemptChunk, AttemptWorker]] = {}

    async def run(self) -> list[Trajectory]:
        self._split()
        idle_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self.waiting or self.in_flight:
            self._start_chunks()
            if not self.in_flight:
                idle_since = idle_since or clock()
                if clock() - idle_since > self.scheduler.patience_s:
                    raise InfrastructureFailure(
                        f"there has been no rollout worker for {self.scheduler.patience_s:g} s "
                        "(runtime.start_timeout_s); log.txt says how they were lost"
                    )
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            idle_since = None
            limit = LOOK_AGAIN_S if self.waiting else None
            done, _ = await asyncio.wait(self.in_flight, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._finish(task)
        return [result for result in self.results if result is not None]

    async def cancel(self) -> None:
        for task in self.in_flight:
            task.cancel()
        await asyncio.gather(*self.in_flight, return_exceptions=True)

    def _split(self) -> None:
        """Whole groups to a chunk: attempts at one task share its prompt's computation."""
        groups: dict[str, list[int]] = {}
        for place, one in enumerate(self.requests):
            reason = self.scheduler.quarantine.tasks.get(one.task.id)
            if reason is not None:
                self._fail(place, reason)
            else:
                groups.setdefault(one.group, []).append(place)
        parts = list(groups.values())
        size = max(1, -(-len(parts) // (CHUNKS_EACH * max(1, len(self.scheduler.workers())))))
        for start in range(0, len(parts), size):
            self.waiting.append(AttemptChunk([p for part in parts[start : start + size] for p in part]))

    def _start_chunks(self) -> None:
        while self.waiting:
            chunk = self.waiting[0]
            load = dict.fromkeys(self.scheduler.workers(), 0)
            alone = set()
            for running, worker in self.in_flight.values():
                if worker in load:
                    load[worker] += len(running.places)
                    if running.suspect:
                        alone.add(worker)
            free = [
                worker
                for worker, count in load.items()
                if worker not in alone
                and (count == 0 or (not chunk.suspect and count + len(chunk.places) <= self.scheduler.room))
            ]
            if not free:
                return
            worker = min(free, key=lambda w: load[w])
            self.waiting.popleft()
            work = worker.attempt([self.requests[p] for p in chunk.places], self.temperature)
            self.in_flight[asyncio.ensure_future(work)] = (chunk, worker)

    def _finish(self, task: asyncio.Task[list[Trajectory]]) -> None:
        chunk, worker = self.in_flight.pop(task)
        try:
            found = task.result()
        except WorkerLost as error:
            self._run_again(chunk, worker, str(error))
            return
        for place, trajectory in zip(chunk.places, found, strict=True):
            self.results[place] = trajectory
        self.arrived(found)

    def _run_again(self, chunk: AttemptChunk, worker: AttemptWorker, reason: str) -> None:
        groups: dict[str, list[int]] = {}
        for place in chunk.places:
            groups.setdefault(self.requests[place].group, []).append(place)
        if chunk.suspect:
            task = self.requests[chunk.places[0]].task
            message = f"task {task.id} is in quarantine: it killed its worker twice ({worker.name}: {reason})"
            self.scheduler.quarantine.tasks[task.id] = message
            for place in chunk.places:
                self._fail(place, message)
            self.scheduler.lost(worker, 0, message)
            return
        self.scheduler.lost(worker, len(chunk.places), reason)
        self.waiting.extendleft(AttemptChunk(places, suspect=True) for places in reversed(groups.values()))

    def _fail(self, place: int, reason: str) -> None:
        one = self.requests[place]
        failed = Trajectory(one.task, one.group, index=one.index, seed=one.seed)
        failed.failure = Failure("task", reason)
        self.results[place] = failed
