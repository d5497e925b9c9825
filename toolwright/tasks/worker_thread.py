"""A thread of its own for code that may block: of an environment, of a tool, of a user's reward."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class WorkerThread:
    """Runs calls one after the other. One that hangs holds up nobody but those behind it.

    It is a daemon, so that a process can end although a call in it never does.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        future: Future[Any] = Future()
        self._calls.put((future, function, args))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """End after the calls that are still queued."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*args))
            except (SystemExit, KeyboardInterrupt, StopIteration) as error:
                # These mean something to an event loop; here they are a mistake of the function.
                mistake = RuntimeError(f"{type(error).__name__}: {error} was raised")
                mistake.__cause__ = error
                future.set_exception(mistake)
            except BaseException as error:
                future.set_exception(error)


async def in_thread(name: str, function: Callable[[], Any]) -> Any:
    """The result of the function. A thread cannot be ended: if it is abandoned, it goes on as a daemon.

    `asyncio.to_thread` has a pool, which is full as soon as a few functions hang. A thread is cheap compared
    to a tool call.
    """
    thread = WorkerThread(f"tool {name}")
    try:
        return await thread.run(contextvars.copy_context().run, function)
    finally:
        thread.end()
