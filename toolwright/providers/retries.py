"""A passing trouble of a server's is no answer: the call is tried again, ever later."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Unpack

from toolwright.failures import InfrastructureFailure
from toolwright.providers import Asked, Chat, Reply, Wrapper
from toolwright.providers.failures import Passing

FIRST_S, MOST_S = 0.5, 60.0


class Retrying(Wrapper):
    """Rate limits, server errors, timeouts and lost connections; nothing that the caller got wrong."""

    def __init__(self, inner: Chat, *, retries: int, first_s: float = FIRST_S) -> None:
        super().__init__(inner)
        self.retries, self.first_s = retries, first_s

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[Asked]) -> Reply:
        for attempt in range(self.retries + 1):
            try:
                return await self.inner.complete(messages, **how)
            except Passing as trouble:
                if attempt == self.retries:
                    raise InfrastructureFailure(f"{trouble} ({attempt + 1} tries)") from trouble
                await asyncio.sleep(self._pause(attempt, trouble.retry_after_s))
        raise AssertionError("a last try answers or raises")

    def _pause(self, attempt: int, asked_s: float | None) -> float:
        """What the server asks for, and else doubled each time; scattered, so that callers do not come back
        together."""
        longest = min(self.first_s * 2**attempt, MOST_S)
        return max(min(asked_s or 0.0, MOST_S), random.uniform(longest / 2, longest))
