"""The queue in front of the workers: bounded, fair between callers and between requests, with deadlines."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

# The address that the current request came from.
CALLER: ContextVar[str] = ContextVar("caller", default="")


class QueueFull(Exception):
    """The queue is full; `retry_after_s` says when there may be room."""

    def __init__(self, waiting: int, retry_after_s: int, what: str = "runs are waiting") -> None:
        super().__init__(f"{waiting} {what}; try again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


@dataclass(eq=False)
class Flow:
    """The calls of one request, or the cells of one session.

    Flows take turns: a batch of thousands delays a single call by one run.
    """

    calls: deque[QueuedRun] = field(default_factory=deque)
    caller: str = field(default_factory=CALLER.get)


@dataclass(eq=False)
class SessionSlot:
    """The place of a session: its worker, its number there, its cells, and whether one is under way."""

    worker: object
    number: int
    busy: bool = False
    flow: Flow = field(default_factory=Flow)


@dataclass(eq=False)
class QueuedRun:
    """A run, or a cell of a session, on its way to a worker and back."""

    job: dict[str, Any]
    answer: asyncio.Future[bytes]
    entered: float
    deadline: float
    slot: SessionSlot | None = None  # of a cell, which only one worker can run
    alone: bool = False  # no other run beside it on its worker
    overdue: float = math.inf  # when a worker that has it and does not answer is killed

    def fits(self, free: list[Any]) -> bool:
        return self.slot is None or (not self.slot.busy and self.slot.worker in free)


@dataclass(eq=False)
class _CallerQueue:
    """The flows of one caller, and how many calls they have."""

    flows: deque[Flow] = field(default_factory=deque)
    length: int = 0

    def take(self, free: list[Any]) -> QueuedRun | None:
        """The next call that somebody still waits for and that a free worker can run.

        A cell whose session or worker is busy keeps its turn, and others go first.
        """
        passed = 0
        while passed < len(self.flows):
            flow = self.flows[passed]
            call = flow.calls[0]
            waited_for = not call.answer.done()
            if waited_for and not call.fits(free):
                passed += 1
                continue
            del self.flows[passed]
            flow.calls.popleft()
            self.length -= 1
            if flow.calls:
                self.flows.append(flow)
            if waited_for:
                return call
        return None

    def remove(self, unwanted: Callable[[QueuedRun], bool]) -> list[QueuedRun]:
        removed: list[QueuedRun] = []
        for flow in self.flows:
            kept: deque[QueuedRun] = deque()
            for call in flow.calls:
                (removed if unwanted(call) else kept).append(call)
            flow.calls = kept
        self.flows = deque(flow for flow in self.flows if flow.calls)
        self.length -= len(removed)
        return removed


class FairQueue:
    """Callers take turns, and so do the requests and sessions of each caller."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: OrderedDict[str, _CallerQueue] = OrderedDict()
        self._rate = 0.0
        self._last_taken = time.monotonic()
        self._earliest = math.inf  # no waiting call has an earlier deadline

    def __len__(self) -> int:
        return sum(line.length for line in self._lines.values())

    def reserve(self, count: int) -> None:
        """Refuses a request that does not fit into its caller's share of the queue.

        A caller with nothing in the queue may send a request of any size.
        """
        line = self._lines.get(CALLER.get())
        own = line.length if line is not None else 0
        callers = len(self._lines) + (line is None)
        if own and own + count > self._limit // callers:
            raise QueueFull(len(self), self.retry_after_s())

    def retry_after_s(self) -> int:
        return max(1, min(60, round(len(self) / self._rate))) if self._rate > 0 else 1

    def add(self, flow: Flow, call: QueuedRun) -> None:
        line = self._lines.setdefault(flow.caller, _CallerQueue())
        if not flow.calls:
            line.flows.append(flow)
        flow.calls.append(call)
        line.length += 1
        self._earliest = min(self._earliest, call.deadline)

    def take(self, free: list[Any]) -> QueuedRun | None:
        """The next call that a free worker can run, of the next caller."""
        for caller, line in list(self._lines.items()):
            call = line.take(free)
            if not line.flows:
                del self._lines[caller]
            elif call is not None:
                self._lines.move_to_end(caller)
            if call is not None:
                self._measure()
                return call
        return None

    def expire(self, now: float) -> list[QueuedRun]:
        """Removes the calls whose deadline passed while they waited."""
        if now < self._earliest:
            return []
        late = self.remove(lambda call: now >= call.deadline)
        self._earliest = min(
            (call.deadline for line in self._lines.values() for flow in line.flows for call in flow.calls),
            default=math.inf,
        )
        return late

    def remove(self, unwanted: Callable[[QueuedRun], bool]) -> list[QueuedRun]:
        """Removes calls wherever they are in the queue."""
        removed: list[QueuedRun] = []
        for caller, line in list(self._lines.items()):
            removed += line.remove(unwanted)
            if not line.flows:
                del self._lines[caller]
        return removed

    def _measure(self) -> None:
        now = time.monotonic()
        between = max(now - self._last_taken, 1e-6)
        self._last_taken = now
        self._rate = 0.98 * self._rate + 0.02 / between
