"""Schedules a step's attempts over workers, group by group, and repeats those of a worker that died.

The same attempt has the same seed on every worker, so a trajectory does not show that its first worker was
lost. A task that was running at two deaths, the second time alone on its worker, is taken to be the cause and
is not scheduled again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


class AttemptScheduler:
    """Runs the attempts of one call. `workers` lists those that can take work now. `quarantine` has the tasks
    that killed their workers, by id, with the message that their attempts fail with. `lost` is called for
    attempts that are repeated, `arrived` with whole groups as workers finish them."""

    def __init__(
        self,
        requests: Sequence[AttemptRequest],
        temperature: float | None,
        workers: Callable[[], Sequence[AttemptWorker]],
        quarantine: dict[str, str],
        *,
        room: int,
        lost: Callable[[AttemptWorker, int, str], None],
        patience_s: float,
        arrived: AttemptsCallback = ignore_attempts,
    ) -> None:
        self.requests, self.temperature = requests, temperature
        self.workers, self.quarantine, self.room = workers, quarantine, room
        self.lost, self.patience_s, self.arrived = lost, patience_s, arrived
        self.results: list[Trajectory | None] = [None] * len(requests)
        self.waiting: deque[AttemptChunk] = deque()
        self.in_flight: dict[asyncio.Task[list[Trajectory]], tuple[AttemptChunk, AttemptWorker]] = {}

    async def run(self) -> list[Trajectory]:
        """Run all attempts and return them in order."""
        try:
            self._split()
            await self._work()
        finally:
            for task in self.in_flight:
                task.cancel()
            await asyncio.gather(*self.in_flight, return_exceptions=True)
        return [result for result in self.results if result is not None]

    async def _work(self) -> None:
        idle_since: float | None = None
        clock = asyncio.get_running_loop().time
        while self.waiting or self.in_flight:
            self._start_chunks()
            if not self.in_flight:
                idle_since = idle_since or clock()
                if clock() - idle_since > self.patience_s:
                    raise InfrastructureFailure(
                        f"there has been no rollout worker for {self.patience_s:g} s "
                        "(runtime.start_timeout_s); log.txt says how they were lost"
                    )
                await asyncio.sleep(LOOK_AGAIN_S)
                continue
            idle_since = None
            limit = LOOK_AGAIN_S if self.waiting else None
            done, _ = await asyncio.wait(self.in_flight, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self._finish(task)

    def _split(self) -> None:
        """Whole groups to a chunk: attempts at one task share its prompt's computation."""
        for place, one in enumerate(self.requests):
            if (reason := self.quarantine.get(one.task.id)) is not None:
                self._fail(place, reason)
        parts = self._by_group(place for place, result in enumerate(self.results) if result is None)
        size = max(1, -(-len(parts) // (CHUNKS_EACH * max(1, len(self.workers())))))
        for start in range(0, len(parts), size):
            self.waiting.append(AttemptChunk([p for part in parts[start : start + size] for p in part]))

    def _start_chunks(self) -> None:
        while self.waiting:
            chunk = self.waiting[0]
            load = dict.fromkeys(self.workers(), 0)
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
                and (count == 0 or (not chunk.suspect and count + len(chunk.places) <= self.room))
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
        if chunk.suspect:
            task = self.requests[chunk.places[0]].task
            message = f"task {task.id} is in quarantine: it killed its worker twice ({worker.name}: {reason})"
            self.quarantine[task.id] = message
            for place in chunk.places:
                self._fail(place, message)
            self.lost(worker, 0, message)
            return
        self.lost(worker, len(chunk.places), reason)
        groups = self._by_group(chunk.places)
        self.waiting.extendleft(AttemptChunk(places, suspect=True) for places in reversed(groups))

    def _by_group(self, places: Iterable[int]) -> list[list[int]]:
        groups: dict[str, list[int]] = {}
        for place in places:
            groups.setdefault(self.requests[place].group, []).append(place)
        return list(groups.values())

    def _fail(self, place: int, reason: str) -> None:
        one = self.requests[place]
        failed = Trajectory(one.task, one.group, index=one.index, seed=one.seed)
        failed.failure = Failure("task", reason)
        self.results[place] = failed
