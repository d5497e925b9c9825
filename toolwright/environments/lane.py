"""A thread for one environment: its calls run in order, in one place, and a hung one holds up nobody else."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class Lane:
    """A daemon: a process can end although a call in it never does."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]] | None]
        self._calls = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        future: Future[Any] = Future()
        self._calls.put((future, function, args))
        return await asyncio.wrap_future(future)

    def end(self) -> None:
        """After what is still to be done."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, args = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(*args))
            except (SystemExit, KeyboardInterrupt, StopIteration) as error:
                # These mean something to an event loop; here they are an environment's mistake.
                mistake = RuntimeError(f"{type(error).__name__} was raised")
                mistake.__cause__ = error
                future.set_exception(mistake)
            except BaseException as error:
                future.set_exception(error)
