"""A budget: so much money, so many tokens, so many calls. Reserved before a call, settled after it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from toolwright.providers import ChatModel, ChatReply, CompletionOptions, Wrapper
from toolwright.providers.accounts import Account, Amount, InFile, InMemory
from toolwright.providers.failures import Passing
from toolwright.providers.prices import cost_of
from toolwright.providers.size import tokens_at_most

if TYPE_CHECKING:
    from toolwright.providers.settings import Price


class BudgetSpent(Exception):
    """The next call could cost more than is left; it was not made."""


class Spending(Protocol):
    """Whoever lets calls in: a budget, or somebody who asks one."""

    async def reserve(self, most: Amount) -> int:
        """Room for a call that takes this much at most; `settle` must follow, whatever happens."""
        ...

    def settle(self, number: int, used: Amount) -> None:
        """The call that had this number is over, and took this."""
        ...


class SpendingBudget:
    """Shared by every chat that spends from it: in this process, or, with a `file`, in all that name it.

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
        file: Path | None = None,
    ) -> None:
        """`spent` before, by a run that goes on: `ledger.total` knows it. A file knows by itself."""
        self.dollars, self.tokens, self.calls = dollars, tokens, calls
        self._account: Account = InFile(file) if file is not None else InMemory(spent or Amount())
        # Nobody is told when another process settles.
        self._look_again_s = 0.05 if file is not None else None
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    @property
    def spent(self) -> Amount:
        return self._account.spent()

    async def reserve(self, most: Amount) -> int:
        """Room for a call that takes this much at most; `settle` must follow, whatever happens."""

        def fits(spent: Amount, held: Amount) -> bool:
            lacking = self._lacking(spent + most, spent)
            if lacking:
                raise BudgetSpent(f"the budget is spent: {lacking}")
            return not self._lacking(spent + held + most, spent)

        while True:
            settled = asyncio.Event()
            with self._lock:  # before looking, so that nothing settles unheard in between
                self._waiting[settled] = asyncio.get_running_loop()
            try:
                number = self._account.hold(most, fits)
                if number is not None:
                    return number
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._look_again_s):
                        await settled.wait()
            finally:
                with self._lock:
                    self._waiting.pop(settled, None)

    def settle(self, number: int, used: Amount) -> None:
        """The call that had this number is over, and took this."""
        self._account.settle(number, used)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for settled, loop in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(settled.set)

    def _lacking(self, needed: Amount, spent: Amount) -> str:
        """Which limit that would pass, in words; "" if none."""
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

    def __init__(self, inner: ChatModel, budget: Spending, *, price: Price) -> None:
        super().__init__(inner)
        self.budget, self.price = budget, price

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        prompt = tokens_at_most(messages, how.get("tools"))
        most = self._amount(prompt, how["max_tokens"])
        number = await self.budget.reserve(most)
        used = Amount(calls=1)
        try:
            reply = await self.inner.complete(messages, **how)
            used = self._amount(reply.prompt_tokens, reply.completion_tokens)
            return reply
        except Passing as trouble:
            used = self._amount(trouble.took.prompt_tokens, trouble.took.completion_tokens)
            raise
        finally:
            self.budget.settle(number, used)

    def _amount(self, prompt: int, completion: int) -> Amount:
        cost = cost_of(self.price, prompt_tokens=prompt, completion_tokens=completion)
        return Amount(cost, prompt + completion, 1)
