"""The line in front of the workers: bounded, fair between requests, with a deadline for each place in it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any


class QueueFull(Exception):
    """There is no room; `retry_after_s` says when there may be."""

    def __init__(self, waiting: int, retry_after_s: int) -> None:
        super().__init__(f"{waiting} runs are waiting; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class Call:
    """One run on its way to a worker and back."""

    job: dict[str, Any]
    answer: asyncio.Future[bytes]
    entered: float
    deadline: float

    def expired(self, now: float) -> bool:
        return now >= self.deadline


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

    def take(self) -> Call | None:
        """The next call that somebody still waits for."""
        while self._flows:
            flow = self._flows.popleft()
            call = flow.calls.popleft()
            self._length -= 1
            if flow.calls:
                self._flows.append(flow)
            if not call.answer.done():
                self._measure()
                return call
        return None

    def expire(self, now: float) -> list[Call]:
        """Takes out the calls whose deadline passed while they waited."""
        late: list[Call] = []
        for flow in list(self._flows):
            kept = deque(call for call in flow.calls if not call.expired(now))
            if len(kept) < len(flow.calls):
                late += [call for call in flow.calls if call.expired(now)]
                self._length -= len(flow.calls) - len(kept)
                flow.calls = kept
                if not kept:
                    self._flows.remove(flow)
        return late

    def _measure(self) -> None:
        now = time.monotonic()
        between = max(now - self._last_taken, 1e-6)
        self._last_taken = now
        self._rate = 0.98 * self._rate + 0.02 / between
