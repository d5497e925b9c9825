"""Live interpreters, by name."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from toolwright.sandbox.jobs import Jobs
from toolwright.sandbox.pool import Link, Pool
from toolwright.sandbox.queue import QueueFull, SessionSlot
from toolwright.sandbox.requests import CellRequest, SessionRequest
from toolwright.sandbox.settings import SandboxSettings

_REMEMBERED = 10_000
_LOOK_EVERY_S = 0.5
_CELLS_MOST = 64  # of one session, waiting and under way: a busy session must not fill the queue


class UnknownSession(KeyError):
    """There never was a session of that name."""


class LostSession(Exception):
    """The session is gone. It is never replaced by an empty one of the same name."""


@dataclass(eq=False)
class OpenSession:
    """An open session: its slot in a worker, and how many of its cells wait or run."""

    name: str
    slot: SessionSlot
    idle_s: float
    used: float
    calls: int = 0


class Sessions:
    """Opens, finds and ends sessions. Remembers why each one ended."""

    def __init__(self, pool: Pool, jobs: Jobs, settings: SandboxSettings) -> None:
        self._pool = pool
        self._jobs = jobs
        self._settings = settings
        self._open: dict[str, OpenSession] = {}
        self._lost: OrderedDict[str, str] = OrderedDict()
        self._watch: asyncio.Task[None] | None = None
        pool.on_session_lost = self._on_lost

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._end_idle())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    async def open(self, request: SessionRequest) -> OpenSession:
        if len(self._open) >= self._settings.sessions_max:
            raise QueueFull(len(self._open), 5)
        job = self._jobs.session(memory_mb=request.memory_mb, files=request.files)
        idle_s = min(request.idle_s or self._settings.session_idle_s, self._settings.session_idle_s)
        slot = self._pool.open_session(job)
        session = OpenSession(secrets.token_urlsafe(16), slot, idle_s, time.monotonic())
        self._open[session.name] = session
        return session

    def find(self, name: str) -> OpenSession:
        if name in self._open:
            return self._open[name]
        if name in self._lost:
            raise LostSession(f"session {name} is lost: {self._lost[name]}")
        raise UnknownSession(name)

    async def run(self, name: str, cell: CellRequest) -> bytes:
        """Runs a cell. Cells of one session wait for each other in the queue."""
        session = self.find(name)
        if session.calls >= _CELLS_MOST:
            retry_after_s = self._pool.queue.retry_after_s()
            raise QueueFull(session.calls, retry_after_s, "cells of this session are waiting")
        self._pool.queue.reserve(1)
        job = self._jobs.cell(cell.code, cell.timeout_s)
        session.calls += 1
        try:
            answer = await self._pool.run_cell(session.slot, job, cell.deadline_s)
        finally:
            session.calls -= 1
            session.used = time.monotonic()
        if answer is None:
            raise LostSession(f"session {name} is lost: {self._lost.get(name, 'its interpreter has ended')}")
        return answer

    def end(self, name: str, why: str = "closed by its caller") -> None:
        session = self.find(name)
        self._forget(session, why)
        self._pool.close_session(session.slot)

    def _forget(self, session: OpenSession, why: str) -> None:
        self._open.pop(session.name, None)
        self._lost[session.name] = why
        while len(self._lost) > _REMEMBERED:
            self._lost.popitem(last=False)

    def _on_lost(self, link: Link, number: int | None, why: str) -> None:
        for session in list(self._open.values()):
            if session.slot.worker is link and number in (None, session.slot.number):
                self._forget(session, why)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = time.monotonic()
            for session in list(self._open.values()):
                if not session.calls and now - session.used > session.idle_s:
                    self.end(session.name, f"it was not used for {session.idle_s:g} s")
