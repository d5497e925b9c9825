"""Runs a blocking function in a thread of its own, so that one that hangs holds up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(name: str, function: Callable[[], Any]) -> Any:
    """The result of the function. A thread cannot be ended: if it is abandoned, it goes on as a daemon.

    `asyncio.to_thread` has a pool, which is full as soon as a few functions hang. A thread is cheap compared
    to a tool call.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)

    def work() -> None:
        result: Any = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except (StopIteration, SystemExit, KeyboardInterrupt) as special:
            # A future refuses StopIteration, and the others would end the event loop.
            error = RuntimeError(f"{type(special).__name__}: {special}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
    return await answer
