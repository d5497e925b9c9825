"""How a turn is waited for: no longer than it may take, and by the name of whose it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from toolwright.failures import InfrastructureFailure

T = TypeVar("T")


async def turn_of(attempt: str, answer: Awaitable[T], *, who: str, limit_s: float) -> T:
    try:
        async with asyncio.timeout(limit_s):  # Python 3.11's `wait_for` loses a cancellation to an answer
            return await answer
    except TimeoutError:
        message = f"{who} did not finish a turn of {attempt} within {limit_s:g} s"
        raise InfrastructureFailure(message) from None
