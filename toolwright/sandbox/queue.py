"""The line in front of the workers: bounded, fair between requests, with a deadline for each place in it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class QueueFull(Exception):
    """There is no room; `retry_after_s` says when there may be."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} runs are waiting; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class Seat:
    """Where a session lives: its worker, its number there, and whether a cell of it is under way."""

    worker: object
    number: int
    busy: bool = False


@dataclass(eq=False)
class Call:
    """One run, or one cell of a session, on its way to a worker and back."""

    job: dict[str, Any]
    answer: asyncio.Future[bytes]
    entered: float
    deadline: float
    seat: Seat | None = None  # of a cell, which only one worker can run
    overdue: float = math.inf  # when a worker that has it and does not answer is given up

    def fits(self, free: list[Any]) -> bool:
        return self.seat is None or (not self.seat.busy and self.seat.worker in free)


@dataclass(eq=False)
class Flow:
    """The calls of one request. Flows take turns: a batch of thousands delays a single call by one run."""

    calls: deque[Call] = field(default_factory=deque)


class FairQueue:
    """Who is next."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._flows: deque[Flow] = deque()
        self._length = 0
        self._rate = 0.0
        self._last_taken = time.monotonic()
        self._earliest = math.inf  # no call that waits has a deadline before this

    def __len__(self) -> int:
        return self._length

    def reserve(self, count: int) -> None:
        """Refuses a request that does not fit; one larger than the whole queue is let into an empty one."""
        if self._length and self._length + count > self._limit:
            raise QueueFull(self._length, self.retry_after_s())

    def retry_after_s(self) -> int:
        return max(1, min(60, round(self._length / self._rate))) if self._rate > 0 else 1

    def add(self, flow: Flow, call: Call) -> None:
        if not flow.calls:
            self._flows.append(flow)
        flow.calls.append(call)
        self._length += 1
        self._earliest = min(self._earliest, call.deadline)

    def take(self, free: list[Any]) -> Call | None:
        """The next call that somebody still waits for and one of the free workers can run.

        A cell whose worker is busy keeps its place, and those behind it go first.
        """
        passed = 0
        while passed < len(self._flows):
            flow = self._flows[passed]
            call = flow.calls[0]
            wanted = not call.answer.done()
            if wanted and not call.fits(free):
                passed += 1
                continue
            del self._flows[passed]
            flow.calls.popleft()
            self._length -= 1
            if flow.calls:
                self._flows.append(flow)
            if wanted:
                self._measure()
                return call
        return None

    def expire(self, now: float) -> list[Call]:
        """Takes out the calls whose deadline passed while they waited."""
        if now < self._earliest:
            return []
        late = self.remove(lambda call: now >= call.deadline)
        self._earliest = min((call.deadline for flow in self._flows for call in flow.calls), default=math.inf)
        return late

    def remove(self, unwanted: Callable[[Call], bool]) -> list[Call]:
        """Takes calls out of the line wherever they stand."""
        removed: list[Call] = []
        for flow in list(self._flows):
            out = [call for call in flow.calls if unwanted(call)]
            if out:
                removed += out
                flow.calls = deque(call for call in flow.calls if not unwanted(call))
                if not flow.calls:
                    self._flows.remove(flow)
        self._length -= len(removed)
        return removed

    def _measure(self) -> None:
        now = time.monotonic()
        between = max(now - self._last_taken, 1e-6)
        self._last_taken = now
        self._rate = 0.98 * self._rate + 0.02 / between
