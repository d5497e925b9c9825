"""How hard a provider is asked: calls side by side, calls and tokens a minute. Beyond that, calls wait."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from toolwright.providers import ChatModel, ChatReply, CompletionOptions, Wrapper
from toolwright.providers.size import tokens_at_most

if TYPE_CHECKING:
    from toolwright.providers.settings import ProviderLimits

MINUTE_S = 60.0
BYTES_A_TOKEN = 4  # of an ordinary text; what was really used is settled when it is known


@dataclass
class Taken:
    at: float
    amount: float


class RateLimit:
    """So much in any minute. What is larger than that by itself gets its turn when nothing else was taken."""

    def __init__(self, a_minute: float | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.a_minute, self._clock = a_minute, clock
        self._taken: deque[Taken] = deque()

    def wait_s(self, amount: float) -> float:
        """Seconds until so much may be taken, as far as is known by now."""
        if self.a_minute is None:
            return 0.0
        now = self._clock()
        while self._taken and self._taken[0].at <= now - MINUTE_S:
            self._taken.popleft()
        over = sum(one.amount for one in self._taken) + amount - self.a_minute
        wait = 0.0
        for one in self._taken:
            if over <= 0:
                break
            over -= one.amount
            wait = one.at + MINUTE_S - now
        return wait

    def take(self, amount: float) -> Taken:
        taken = Taken(self._clock(), amount)
        if self.a_minute is not None:
            self._taken.append(taken)
        return taken


class Limited(Wrapper):
    def __init__(self, inner: ChatModel, limits: ProviderLimits) -> None:
        super().__init__(inner)
        self._places = asyncio.Semaphore(limits.concurrency)
        self._requests = RateLimit(limits.requests_a_minute)
        self._tokens = RateLimit(limits.tokens_a_minute)
        self._turn = asyncio.Lock()  # first come, first served

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        prompt = tokens_at_most(messages, how.get("tools")) / BYTES_A_TOKEN
        async with self._places:
            taken = await self._admitted(prompt + how["max_tokens"])
            try:
                reply = await self.inner.complete(messages, **how)
            except BaseException:
                taken.amount = prompt  # as far as is known, nothing was written
                raise
            taken.amount = reply.prompt_tokens + reply.completion_tokens
            return reply

    async def _admitted(self, tokens: float) -> Taken:
        async with self._turn:
            while (pause := max(self._requests.wait_s(1), self._tokens.wait_s(tokens))) > 0:
                await asyncio.sleep(pause)
            self._requests.take(1)
            return self._tokens.take(tokens)
