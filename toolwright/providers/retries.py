"""A passing trouble of a server's is no answer: the call is tried again, ever later."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Unpack

from toolwright.providers import ChatModel, ChatReply, CompletionOptions, Wrapper
from toolwright.providers.budget import BudgetSpent
from toolwright.providers.failures import Passing

FIRST_S, MOST_S = 0.5, 60.0


class Retrying(Wrapper):
    """Rate limits, server errors, timeouts and lost connections; nothing that the caller got wrong. A reply,
    or the failure in the end, tells what all tries took, as far as is known."""

    def __init__(self, inner: ChatModel, *, retries: int, first_s: float = FIRST_S) -> None:
        super().__init__(inner)
        self.retries, self.first_s = retries, first_s

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        took = ChatReply("", cost=0.0)
        for attempt in range(self.retries + 1):
            try:
                reply = await self.inner.complete(messages, **how)
                return reply.after(took)
            except Passing as trouble:
                last, took = trouble, took.after(trouble.took)
                if attempt == self.retries:
                    break
                await asyncio.sleep(self._pause(attempt, trouble.retry_after_s))
            except BudgetSpent as spent:
                if not attempt:
                    raise
                raise Passing(f"{last} ({attempt} tries; {spent})", took=took) from last
        raise Passing(f"{last} ({self.retries + 1} tries)", took=took) from last

    def _pause(self, attempt: int, asked_s: float | None) -> float:
        """What the server asks for, and else doubled each time; scattered, so that callers do not come back
        together."""
        longest = min(self.first_s * 2**attempt, MOST_S)
        return max(min(asked_s or 0.0, MOST_S), random.uniform(longest / 2, longest))
