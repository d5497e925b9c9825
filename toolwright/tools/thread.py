"""Runs a blocking function in a thread of its own, so that one that hangs holds up nobody else."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

from toolwright.tasks.worker_thread import WorkerThread


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
