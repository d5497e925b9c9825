"""Calls in time: rate limits that calls wait for, and retries of what may pass."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from toolwright.providers.budget import BudgetSpent
from toolwright.providers.chat import (
    ChatModel,
    ChatReply,
    ChatWrapper,
    CompletionOptions,
    TransientError,
    max_prompt_tokens,
)

if TYPE_CHECKING:
    from toolwright.providers.settings import ProviderLimits

MINUTE_S = 60.0
BYTES_A_TOKEN = 4  # of ordinary text; the reply's usage corrects the estimate


@dataclass
class RateUse:
    """A use of a rate limit. Its amount may be corrected later."""

    at: float
    amount: float


class RateLimit:
    """At most `a_minute` in any minute. A single amount above the limit waits until nothing else was used."""

    def __init__(self, a_minute: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.a_minute, self._clock = a_minute, clock
        self._uses: deque[RateUse] = deque()

    def wait_s(self, amount: float) -> float:
        """Seconds until this amount fits, as far as is known by now."""
        if self.a_minute is None:
            return 0.0
        now = self._clock()
        while self._uses and self._uses[0].at <= now - MINUTE_S:
            self._uses.popleft()
        over = sum(one.amount for one in self._uses) + amount - self.a_minute
        wait = 0.0
        for one in self._uses:
            if over <= 0:
                break
            over -= one.amount
            wait = one.at + MINUTE_S - now
        return wait

    def take(self, amount: float) -> RateUse:
        use = RateUse(self._clock(), amount)
        if self.a_minute is not None:
            self._uses.append(use)
        return use


class RateLimited(ChatWrapper):
    """Holds calls back until the limits allow them, first come, first served."""

    def __init__(self, inner: ChatModel, limits: ProviderLimits) -> None:
        super().__init__(inner)
        self._concurrency = asyncio.Semaphore(limits.concurrency)
        self._requests = RateLimit(limits.requests_a_minute)
        self._tokens = RateLimit(limits.tokens_a_minute)
        self._turn = asyncio.Lock()

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        prompt_tokens = max_prompt_tokens(messages, options.get("tools")) / BYTES_A_TOKEN
        async with self._concurrency:
            use = await self._admit(prompt_tokens + options["max_tokens"])
            try:
                reply = await self.inner.complete(messages, **options)
            except BaseException:
                use.amount = prompt_tokens  # as far as is known, nothing was generated
                raise
            use.amount = reply.prompt_tokens + reply.completion_tokens
            return reply

    async def _admit(self, tokens: float) -> RateUse:
        async with self._turn:
            while (pause := max(self._requests.wait_s(1), self._tokens.wait_s(tokens))) > 0:
                await asyncio.sleep(pause)
            self._requests.take(1)
            return self._tokens.take(tokens)


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
