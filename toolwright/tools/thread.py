"""A blocking function in a thread of its own, so that one that hangs keeps no one else waiting."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import Any


async def in_thread(name: str, function: Callable[[], Any]) -> Any:
    """Its result. Nobody can end a thread: one that is given up lives on, as a daemon, and is not heard.

    A pool would be full as soon as a few functions hang; a thread costs little beside a tool call.
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
            # A future refuses the first, and the others would end the event loop.
            error = RuntimeError(f"{type(special).__name__}: {special}")
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"tool {name}", daemon=True).start()
    return await answer
