"""Server-sent events: what changed in which run. One task looks at the files for all pages that are open."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from typing import Any

from toolwright import __version__
from toolwright.observe.rollouts import Version
from toolwright.ui.run_card import card
from toolwright.ui.run_library import OpenRun, RunLibrary
from toolwright.ui.view import as_json

LOOK_EVERY_S = 2.0
# The page must not slow down the run that it shows. A look, and what pages ask for after it, takes this part
# of a core at most: if it takes longer, the next look waits longer, up to so many times.
SHARE, SLOWEST = 0.004, 5.0
STATE_EVERY_S = 15.0  # a run that died writes nothing: whether it is still running is looked at so often
OLD_S, OLD_EVERY = 600.0, 10  # a run that was written so long ago is looked at every tenth time
ALIVE_EVERY_S = 15.0
NOTICE_STOP_S = 1.0
MOST_ROWS = 50  # of metrics in one event
MOST_WAITING = 1000  # events for a page that does not read them
Message = tuple[str, dict[str, Any]]


class LiveFeed:
    """Sends each change to every page. Nothing is looked at while no page is open."""

    def __init__(self, library: RunLibrary, executor: Executor, stopping: Callable[[], bool]) -> None:
        self._library, self._executor, self._stopping = library, executor, stopping
        self._pages: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._watch = ChangeWatch(library)

    async def events(self) -> AsyncGenerator[bytes]:
        """One page's events, until it leaves or the server stops."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(MOST_WAITING)
        if self._task is None or self._task.done():
            await asyncio.get_running_loop().run_in_executor(self._executor, self._watch.begin)
            self._task = asyncio.create_task(self._look())
        self._pages.add(queue)
        try:
            yield b"retry: 2000\n" + _event("hello", {"version": __version__, "time": time.time()})
            alive = time.monotonic()
            while not self._stopping() and queue in self._pages:
                try:
                    yield await asyncio.wait_for(queue.get(), NOTICE_STOP_S)
                except TimeoutError:
                    if time.monotonic() - alive > ALIVE_EVERY_S:
                        alive = time.monotonic()
                        yield b": still here\n\n"
        finally:
            self._pages.discard(queue)

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pages and not self._stopping():
                before = time.process_time()
                messages = await loop.run_in_executor(self._executor, self._watch.changes)
                for kind, data in messages:
                    self._send(_event(kind, data))
                await asyncio.sleep(LOOK_EVERY_S)
                spent = (time.process_time() - before) / LOOK_EVERY_S
                await asyncio.sleep(LOOK_EVERY_S * (min(SLOWEST, max(1.0, spent / SHARE)) - 1))
        except Exception:
            logging.getLogger("toolwright.ui").exception("looking for changes failed")
        finally:  # a page must not wait for a task that has ended: it connects again, which starts another
            self._pages.clear()

    def _send(self, event: bytes) -> None:
        for queue in list(self._pages):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:  # it will connect again, and ask for everything
                self._pages.discard(queue)


class ChangeWatch:
    """Finds what has changed in the runs since it last looked."""

    def __init__(self, library: RunLibrary) -> None:
        self._library = library
        self._versions: dict[str, dict[str, Version]] = {}
        self._rows: dict[str, int] = {}
        self._running: set[str] = set()
        self._states_at = 0.0
        self._looks = 0

    def begin(self) -> None:
        """Take everything there is by now as known."""
        runs = self._library.all()
        self._versions = {run.name: run.files.versions() for run in runs}
        self._rows = {run.name: run.metrics.rows for run in runs}
        self._running = {run.name for run in runs if card(run)["state"] == "running"}
        self._states_at = time.monotonic()

    def changes(self) -> list[Message]:
        runs, messages = self._library.all(), list[Message]()
        self._looks += 1
        look_at_states = time.monotonic() - self._states_at > STATE_EVERY_S
        if look_at_states:
            self._states_at = time.monotonic()
        for place, run in enumerate(runs):
            known = self._versions.get(run.name, {})
            if self._is_old(known) and (self._looks + place) % OLD_EVERY:
                continue
            versions = run.files.versions()
            changed = [part for part in versions if versions[part] != known.get(part)]
            changed += [part for part in known if part not in versions]
            self._versions[run.name] = versions
            if changed or (look_at_states and run.name in self._running):
                messages += self._message(run, changed)
        for name in self._versions.keys() - {run.name for run in runs}:
            del self._versions[name]
            messages.append(("gone", {"name": name}))
        return messages

    def _is_old(self, versions: dict[str, Version]) -> bool:
        """True if a run was last written long ago. Hundreds of old runs are not all checked every second."""
        last = max((changed for changed, _ in versions.values()), default=time.time_ns())
        return time.time_ns() - last > OLD_S * 1e9

    def _message(self, run: OpenRun, changed: list[str]) -> list[Message]:
        about = card(run)
        stopped = run.name in self._running and about["state"] != "running"
        if not changed and not stopped:
            return []
        (self._running.add if about["state"] == "running" else self._running.discard)(run.name)
        metrics, before = run.metrics, self._rows.get(run.name, 0)
        rows = metrics.rows
        before = before if before <= rows else 0
        since = max(before, rows - MOST_ROWS)
        self._rows[run.name] = rows
        columns = metrics.columns(metrics.names, since) if rows > since else {}
        new = [
            {name: value for name, value in zip(columns, values, strict=True) if value is not None}
            for values in zip(*columns.values(), strict=True)
        ]
        return [("run", {"run": about, "changed": changed, "from": since, "rows": new})]


def _event(kind: str, data: dict[str, Any]) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + as_json(data) + b"\n\n"
