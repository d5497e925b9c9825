"""Retries with exponential backoff, above the budget: each try is reserved and paid for by itself."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Unpack

from toolwright.providers.budget import BudgetSpent
from toolwright.providers.chat import ChatModel, ChatReply, ChatWrapper, CompletionOptions, TransientError

FIRST_S, MOST_S = 0.5, 60.0


class Retrying(ChatWrapper):
    """Retries transient errors: rate limits, server errors, timeouts and lost connections. The reply, or the
    last error, carries the usage of all tries as far as it is known."""

    def __init__(self, inner: ChatModel, *, retries: int, first_s: float = FIRST_S) -> None:
        super().__init__(inner)
        self.retries, self.first_s = retries, first_s

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        usage = ChatReply("", cost=0.0)
        for attempt in range(self.retries + 1):
            try:
                reply = await self.inner.complete(messages, **options)
                return reply.with_usage_of(usage)
            except TransientError as error:
                last, usage = error, usage.with_usage_of(error.usage)
                if attempt == self.retries:
                    break
                await asyncio.sleep(self._pause(attempt, error.retry_after_s))
            except BudgetSpent as spent:
                if not attempt:
                    raise
                raise TransientError(f"{last} ({attempt} tries; {spent})", usage=usage) from last
        raise TransientError(f"{last} ({self.retries + 1} tries)", usage=usage) from last

    def _pause(self, attempt: int, retry_after_s: float | None) -> float:
        """Wait as long as the server requests, else twice as long each time; scattered, so that callers do
        not come back together."""
        longest = min(self.first_s * 2**attempt, MOST_S)
        return max(min(retry_after_s or 0.0, MOST_S), random.uniform(longest / 2, longest))
