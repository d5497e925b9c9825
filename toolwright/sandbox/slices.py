"""Many calls begun a few at a time, so that others are heard in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

_SLICE_S = 0.001
T = TypeVar("T")


async def in_slices(calls: Iterable[T | Coroutine[Any, Any, T]]) -> list[T]:
    """The results of many calls, in order; some may be results already.

    `asyncio.gather` would begin and end them all at once, and nobody else would be heard meanwhile.
    """
    begun: list[T | asyncio.Task[T]] = []
    results: list[T] = []
    slice_ends = time.perf_counter() + _SLICE_S
    try:
        for call in calls:
            begun.append(asyncio.ensure_future(call) if asyncio.iscoroutine(call) else call)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.perf_counter() + _SLICE_S
        for one in begun:
            results.append(await one if isinstance(one, asyncio.Task) else one)
            if time.perf_counter() > slice_ends:
                await asyncio.sleep(0)
                slice_ends = time.perf_counter() + _SLICE_S
    finally:
        for one in begun[len(results) :]:
            if isinstance(one, asyncio.Task):
                one.cancel()
    return results
