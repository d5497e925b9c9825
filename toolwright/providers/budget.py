"""A budget: so much money, so many tokens, so many calls. Reserved before a call, settled after it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from toolwright.providers import Asked, Chat, Reply, Wrapper
from toolwright.providers.prices import cost_of
from toolwright.providers.size import tokens_at_most

if TYPE_CHECKING:
    from toolwright.providers.settings import Price


class BudgetSpent(Exception):
    """The next call could cost more than is left; it was not made."""


@dataclass(frozen=True)
class Amount:
    """What calls take."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.dollars + other.dollars, self.tokens + other.tokens, self.calls + other.calls)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.dollars - other.dollars, self.tokens - other.tokens, self.calls - other.calls)


class Budget:
    """Shared by every chat that spends from it, in any task or thread of this process.

    A call is let in if what it can cost at most still fits beside what was spent and what others may be
    spending, and waits for these to settle if it would fit without them. So no limit is ever passed.
    """

    def __init__(
        self,
        *,
        dollars: float | None = None,
        tokens: int | None = None,
        calls: int | None = None,
        spent: Amount | None = None,
    ) -> None:
        """`spent` before, by a run that goes on: `ledger.total` knows it."""
        self.dollars, self.tokens, self.calls = dollars, tokens, calls
        self.spent = spent or Amount()
        self._reserved = Amount()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def reserve(self, most: Amount) -> None:
        """Room for a call that takes this much at most; `settle` must follow, whatever happens."""
        while True:
            with self._lock:
                lacking = self._lacking(self.spent + most)
                if lacking:
                    raise BudgetSpent(f"the budget is spent: {lacking}")
                if not self._lacking(self.spent + self._reserved + most):
                    self._reserved += most
                    return
                settled = asyncio.Event()
                self._waiting.append((asyncio.get_running_loop(), settled))
            await settled.wait()

    def settle(self, most: Amount, used: Amount) -> None:
        """The call that had reserved `most` is over, and took this."""
        with self._lock:
            self._reserved -= most
            self.spent += used
            waiting, self._waiting = self._waiting, []
        for loop, settled in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(settled.set)

    def _lacking(self, needed: Amount) -> str:
        """Which limit that would pass, in words; "" if none."""
        spent = self.spent
        # Sums of many small prices are rounded; a billionth of a dollar is nobody's.
        if self.dollars is not None and needed.dollars > self.dollars + 1e-9:
            return f"${spent.dollars:.4f} of ${self.dollars:.4f}, and the next call may take more"
        if self.tokens is not None and needed.tokens > self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens, and the next call may take more"
        if self.calls is not None and needed.calls > self.calls:
            return f"all {self.calls} calls"
        return ""


class Budgeted(Wrapper):
    """Asks only what the budget has room for. A call that fails counts as a call, and costs what is known."""

    def __init__(self, inner: Chat, budget: Budget, *, price: Price) -> None:
        super().__init__(inner)
        self.budget, self.price = budget, price

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[Asked]) -> Reply:
        prompt = tokens_at_most(messages, how.get("tools"))
        most = self._amount(prompt, how["max_tokens"])
        await self.budget.reserve(most)
        used = Amount(calls=1)
        try:
            reply = await self.inner.complete(messages, **how)
            used = self._amount(reply.prompt_tokens, reply.completion_tokens)
            return reply
        finally:
            self.budget.settle(most, used)

    def _amount(self, prompt: int, completion: int) -> Amount:
        cost = cost_of(self.price, prompt_tokens=prompt, completion_tokens=completion)
        return Amount(cost, prompt + completion, 1)
