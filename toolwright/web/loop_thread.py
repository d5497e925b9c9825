"""An event loop in a thread of its own, for code that has no loop or whose loop ends too early."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Starts with the first call. Any thread and any event loop may submit work to it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine there. Cancelling the future cancels the coroutine."""
        with self._lock:
            return asyncio.run_coroutine_threadsafe(work, self._running())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for its result."""
        return self.submit(work).result()

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> None:
        """Calls a function there, in the order of the calls."""
        with self._lock:
            self._running().call_soon_threadsafe(function, *arguments)

    def cancel_all(self) -> None:
        """Cancels the work under way, so that what it uses can be closed. Its callers are cancelled."""
        with self._lock:
            if self._loop is not None:
                asyncio.run_coroutine_threadsafe(_cancel_other_tasks(), self._loop).result()

    def close(self) -> None:
        """Cancels the work under way and ends the thread."""
        self.cancel_all()
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
            self._thread.start()
        return self._loop


async def _cancel_other_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
