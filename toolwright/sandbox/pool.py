"""Starts the workers of a server, feeds them from the fair queue, and replaces those that die."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, cast

import orjson

from toolwright.failures import InfrastructureFailure
from toolwright.sandbox import cgroup, view, wire
from toolwright.sandbox.limits import wall_seconds
from toolwright.sandbox.queue import FairQueue, Flow, QueuedRun, SessionSlot
from toolwright.sandbox.settings import SandboxSettings

logger = logging.getLogger("toolwright.sandbox")

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[2]);"
    "from toolwright.sandbox.worker_main import main; main(int(sys.argv[1]))"
)
# Sets have the same order in every worker. Symbols are bound once, before the fork, not in every child.
_ENVIRONMENT = {"PYTHONHASHSEED": "0", "LD_BIND_NOW": "1"}
_START_TIMEOUT_S = 120.0
_EXPIRE_EVERY_S = 0.05
_RESTART_PAUSE_S = 0.5
_PATIENCE_S = 60.0  # for a worker that should have ended a run by now
_KILLED = "worker: the process that ran it was killed"
_KILLED_ALONE = "the run took its worker with it, and nothing else ran there"
_LOST = b'{"lost"'  # how the answer begins if the session of a cell is gone


def refusal(status: str, reason: str, queued_s: float = 0.0) -> dict[str, Any]:
    """The answer to a run that no worker could finish."""
    return {
        "status": status,
        "stdout": "",
        "stderr": "",
        "exit_code": None,
        "duration_s": 0.0,
        "queued_s": round(queued_s, 6),
        "truncated": False,
        "reason": reason,
    }


class Link(asyncio.Protocol):
    """A worker process and the runs that it has."""

    def __init__(self, pool: Pool, index: int) -> None:
        self.index = index
        self.running: dict[int, QueuedRun] = {}
        # A run that needs this worker alone: it waits until the others have ended, or runs.
        self.held_for: QueuedRun | None = None
        self.sessions = 0
        self.preloaded: list[str] = []
        self.ready_at = 0.0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        self.process: subprocess.Popen[bytes] | None = None
        self._pool = pool
        self._frames = wire.Frames()
        self._transport: asyncio.Transport | None = None
        self._group = cgroup.ControlGroup(f"toolwright-sandbox-{os.getpid()}-{id(self):x}")

    async def start(self, instructions: dict[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        package = str(Path(__file__).resolve().parents[2])
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-c", _BOOT, str(theirs.fileno()), package],
            pass_fds=[theirs.fileno()],
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        body = json.dumps({**instructions, "index": self.index, "group": self._group.name}).encode()
        self.write(wire.with_length(body))
        try:
            await asyncio.wait_for(asyncio.shield(self.ready), _START_TIMEOUT_S)
        except TimeoutError:
            self.kill()
            raise InfrastructureFailure(f"a worker was not ready after {_START_TIMEOUT_S:.0f} s") from None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class does not say so

    def data_received(self, data: bytes) -> None:
        for kind, number, body in self._frames.feed(data):
            if kind == wire.RESULT:
                call = self.running.pop(number, None)
                if call is not None and call is self.held_for:
                    self.held_for = None
                self._pool.answered(call, body)
            elif kind == wire.READY:
                self._on_ready(json.loads(body))
            elif kind == wire.LOST:
                self.sessions -= 1
                self._pool.on_session_lost(self, number, json.loads(body)["why"])

    def _on_ready(self, message: dict[str, Any]) -> None:
        if "error" in message:
            self.ready.set_exception(InfrastructureFailure(f"a worker cannot start: {message['error']}"))
        else:
            self.preloaded = message["preloaded"]
            self.ready_at = time.monotonic()
            self.ready.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(InfrastructureFailure("a worker died before it was ready"))
        self.gone.set()
        self._pool.lost(self)

    def runs_held(self) -> bool:
        """True once the run that this worker is held for has begun."""
        return self.held_for in self.running.values()

    def is_alive(self) -> bool:
        return self.ready.done() and not self.gone.is_set()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def cancel_unless_answered(self, number: int, answer: asyncio.Future[bytes]) -> None:
        if answer.cancelled():
            self.write(wire.frame(wire.CANCEL, number))

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()

    async def close(self) -> None:
        """Closes the connection. The worker then ends, with its zygotes and runs."""
        if self._transport is not None:
            self._transport.close()
        if self.process is not None:
            try:
                await asyncio.to_thread(self.process.wait, 5)
            except subprocess.TimeoutExpired:
                self.kill()
                await asyncio.to_thread(self.process.wait)
        await asyncio.to_thread(self._group.remove)


class Pool:
    """Takes runs and gives answers, whichever worker dies meanwhile."""

    def __init__(self, settings: SandboxSettings, layers: frozenset[str], tools: list[str]) -> None:
        self.settings = settings
        self.layers = layers
        self.queue = FairQueue(settings.queue_limit)
        self.links: list[Link] = []
        self.answers = 0
        self.restarts = 0
        self.on_session_lost: Callable[[Link, int | None, str], None] = lambda *_: None
        self.instructions = {
            "layers": sorted(layers),
            "limits": asdict(settings.limits),
            "preload": settings.preload,
            "packages": view.package_folders(),
            "runs_per_worker": settings.runs_per_worker,
            "tools": tools,
            # Each worker stays on a core. Several servers on one machine must not all start with the same.
            "first_core": int.from_bytes(os.urandom(2)),
            "group_bytes": cgroup.share_of_memory(settings.worker_count),
            "group_processes": settings.limits.processes
            * (8 + settings.runs_per_worker + settings.sessions_max),
        }
        self._numbers = itertools.count(1)
        self._closing = False
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        self.links = [Link(self, index) for index in range(self.settings.worker_count)]
        try:
            await asyncio.gather(*(link.start(self.instructions) for link in self.links))
        except BaseException:
            await self.close()
            raise
        self._spawn(self._expire())

    async def close(self) -> None:
        self._closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links), return_exceptions=True)
        for call in self.queue.remove(lambda _: True):
            self._resolve(call, refusal("killed", "the server is stopping"))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Runs.

    def submit(
        self,
        job: dict[str, Any],
        flow: Flow,
        deadline_s: float | None = None,
        slot: SessionSlot | None = None,
        *,
        alone: bool = False,
    ) -> asyncio.Future[bytes]:
        """Queues a run or a cell. The future gets the answer as JSON, whatever happens."""
        now = time.monotonic()
        wait = self.settings.queue_timeout_s if deadline_s is None else deadline_s
        call = QueuedRun(job, asyncio.get_running_loop().create_future(), now, now + wait, slot, alone)
        if deadline_s is not None:
            job["deadline_s"] = deadline_s
        self.queue.add(flow, call)
        self._dispatch()
        return call.answer

    def _dispatch(self) -> None:
        for link in self.links:
            self._begin_alone(link)
        while self.queue and (free := self._free_links()):
            call = self.queue.take(free)
            if call is None:
                return
            if call.alone:
                # The worker with the fewest sessions: they would end with the worker.
                link = min(free, key=lambda link: (link.sessions, len(link.running)))
                link.held_for = call
                self._begin_alone(link)
            elif call.slot is None:
                self._send(min(free, key=lambda link: len(link.running)), call)
            else:
                self._send(cast(Link, call.slot.worker), call)

    def _begin_alone(self, link: Link) -> None:
        """Sends the run that needs a worker alone, once nothing else runs there."""
        if link.held_for is not None and not link.running and link.is_alive():
            if link.held_for.answer.done():  # its caller has hung up
                link.held_for = None
            else:
                self._send(link, link.held_for)

    def _free_links(self) -> list[Link]:
        most = self.settings.runs_per_worker
        return [
            link
            for link in self.links
            if len(link.running) < most and link.held_for is None and link.is_alive()
        ]

    def _send(self, link: Link, call: QueuedRun) -> None:
        now = time.monotonic()
        job = call.job
        job["queued_s"] = round(now - call.entered, 6)
        wall_s = wall_seconds(job["timeout_s"])
        left_s = max(0.001, call.deadline - now) if job.get("deadline_s") is not None else math.inf
        job["wall_s"], job["wall_is_deadline"] = min(wall_s, left_s), left_s < wall_s
        call.overdue = now + job["wall_s"] + _PATIENCE_S
        number = next(self._numbers) & 0xFFFFFFFF
        link.running[number] = call
        # If nobody waits for it any more, a run is ended and a cell is interrupted.
        call.answer.add_done_callback(partial(link.cancel_unless_answered, number))
        if call.slot is not None:
            call.slot.busy = True
        kind = wire.CELL if call.slot is not None else wire.CHECK if "checker" in job else wire.RUN
        link.write(wire.frame(kind, number, orjson.dumps(job)))

    def answered(self, call: QueuedRun | None, body: bytes) -> None:
        if call is not None:
            self.answers += 1
            if call.slot is not None:
                call.slot.busy = False
            if not call.answer.done():
                call.answer.set_result(body)
        self._dispatch()

    @staticmethod
    def _resolve(call: QueuedRun, result: dict[str, Any]) -> None:
        if not call.answer.done():
            # The answer to a cell has one more field.
            call.answer.set_result(orjson.dumps(result if call.slot is None else {**result, "value": None}))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(_EXPIRE_EVERY_S)
            now = time.monotonic()
            for call in [*self.queue.expire(now), *self._expire_held(now)]:
                waited = now - call.entered
                self._resolve(
                    call, refusal("timeout", "queue: the deadline passed before a worker was free", waited)
                )
            for link in self.links:
                if any(now > call.overdue for call in link.running.values()):
                    logger.error("worker %d does not answer and is killed", link.index)
                    link.kill()

    def _expire_held(self, now: float) -> list[QueuedRun]:
        """Runs whose deadline passed while they waited for a worker alone. Frees these workers for others."""
        late = []
        for link in self.links:
            if link.held_for is not None and link.held_for.deadline <= now and not link.runs_held():
                late.append(link.held_for)
                link.held_for = None
        if late:
            self._dispatch()
        return late

    # Workers that die.

    def lost(self, link: Link) -> None:
        self.on_session_lost(link, None, "its worker was killed")
        waiting = self.queue.remove(lambda call: call.slot is not None and call.slot.worker is link)
        for call in (*link.running.values(), *waiting):
            if call.slot is not None and not call.answer.done():
                call.answer.set_result(_LOST + b":true}")
            self._resolve(call, refusal("killed", _KILLED_ALONE if call.alone else _KILLED))
        if link.held_for is not None and not link.runs_held():
            self.queue.add(Flow(), link.held_for)  # it waited for the others and never began
        link.held_for = None
        link.running.clear()
        if not self._closing and link in self.links and link.ready.done() and link.ready.exception() is None:
            self._spawn(self._replace(link))

    async def _replace(self, link: Link) -> None:
        logger.warning("worker %d is gone; starting another", link.index)
        await link.close()
        if time.monotonic() - link.ready_at < _RESTART_PAUSE_S:
            await asyncio.sleep(_RESTART_PAUSE_S)  # it died at once, and the next one may too
        while not self._closing:
            fresh = Link(self, link.index)
            try:
                await fresh.start(self.instructions)
            except InfrastructureFailure as error:
                logger.error("%s; trying again", error)
                await fresh.close()
                await asyncio.sleep(_RESTART_PAUSE_S)
                continue
            except asyncio.CancelledError:
                await fresh.close()
                raise
            self.restarts += 1
            self.links[self.links.index(link)] = fresh
            self._dispatch()
            return

    # Sessions.

    def open_session(self, job: dict[str, Any]) -> SessionSlot:
        """Opens a session on the worker with the fewest."""
        alive = [link for link in self.links if link.is_alive()]
        if not alive:
            raise InfrastructureFailure("no worker is running at the moment; try again")
        link = min(alive, key=lambda link: link.sessions)
        number = next(self._numbers) & 0xFFFFFFFF
        link.sessions += 1
        link.write(wire.frame(wire.OPEN, number, orjson.dumps(job)))
        return SessionSlot(link, number)

    async def run_cell(
        self, slot: SessionSlot, cell: dict[str, Any], deadline_s: float | None
    ) -> bytes | None:
        """The answer to a cell, which waits in the same queue as runs; None if its session is gone."""
        answer = await self.submit({**cell, "session": slot.number}, slot.flow, deadline_s, slot)
        return None if answer.startswith(_LOST) else answer

    def close_session(self, slot: SessionSlot) -> None:
        cast(Link, slot.worker).write(wire.frame(wire.CLOSE, slot.number))
