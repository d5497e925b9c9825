"""A notebook runs its cells inside an event loop; what runs loops of its own has to step out of that."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def outside_event_loop() -> Iterator[None]:
    """Let blocking code use `asyncio.run` here, although this thread may have a loop that is running.

    The running loop stands still meanwhile, as it does during any blocking call.
    """
    loop = asyncio._get_running_loop()
    if loop is None:
        yield
        return
    # Since 3.14 a thread has one current task, whatever loop it is of.
    swap = getattr(asyncio.tasks, "_swap_current_task", None) if sys.version_info >= (3, 14) else None
    task = swap(loop, None) if swap else None
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        if swap:
            swap(loop, task)
