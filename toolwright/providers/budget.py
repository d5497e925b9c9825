"""A budget in dollars, tokens and calls. A call reserves its upper bound first and settles what it used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from toolwright.providers.chat import (
    ChatModel,
    ChatReply,
    ChatWrapper,
    CompletionOptions,
    TransientError,
    max_prompt_tokens,
)
from toolwright.providers.prices import cost_of
from toolwright.providers.sqlite_file import open_sqlite

if TYPE_CHECKING:
    from toolwright.providers.settings import Price


class BudgetSpent(Exception):
    """The next call could cost more than is left; it was not made."""


@dataclass(frozen=True)
class Amount:
    """An amount of use: dollars, tokens and calls."""

    dollars: float = 0.0
    tokens: int = 0
    calls: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.dollars + other.dollars, self.tokens + other.tokens, self.calls + other.calls)


class Spending(Protocol):
    """Lets calls in: a budget, or a client of one in another process."""

    async def reserve(self, most: Amount) -> int:
        """Reserve room for a call that uses at most this much; returns a number for `settle`, which must
        follow whatever happens."""
        ...

    def settle(self, number: int, used: Amount) -> None:
        """End the reservation of this number, and record what the call used."""
        ...


class Account:
    """Amounts spent and reserved: in a file that processes of one machine share, or in memory.

    What a killed process had reserved counts as spent: nobody knows how far its calls had come.
    """

    def __init__(self, path: Path | None, spent: Amount | None) -> None:
        self._lock = threading.Lock()
        columns = "number INTEGER PRIMARY KEY, process TEXT, dollars REAL, tokens INTEGER, calls INTEGER"
        self._file = open_sqlite(path, f"amounts ({columns})", purpose="the books of a budget")
        if spent is not None:
            self._insert(None, spent)

    def spent(self) -> Amount:
        with self._lock:
            return self._sum("process IS NULL")  # a process is named as long as it holds the amount

    def hold(self, most: Amount, fits: Callable[[Amount, Amount], bool]) -> int | None:
        """Reserve this much if `fits(spent, held)`; returns the reservation's number."""
        with self._transaction():
            holders = self._file.execute("SELECT DISTINCT process FROM amounts WHERE process IS NOT NULL")
            for (process,) in holders.fetchall():
                if _process_identity(int(process.split()[0])) != process:
                    self._file.execute("UPDATE amounts SET process = NULL WHERE process = ?", (process,))
            if not fits(self._sum("process IS NULL"), self._sum("process IS NOT NULL")):
                return None
            return self._insert(_process_identity(os.getpid()), most)

    def settle(self, number: int, used: Amount) -> None:
        with self._transaction():
            self._file.execute(
                "UPDATE amounts SET process = NULL, dollars = ?, tokens = ?, calls = ? WHERE number = ?",
                (used.dollars, used.tokens, used.calls, number),
            )

    def _insert(self, process: str | None, amount: Amount) -> int | None:
        row = (process, amount.dollars, amount.tokens, amount.calls)
        return self._file.execute("INSERT INTO amounts VALUES (NULL, ?, ?, ?, ?)", row).lastrowid

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock:
            self._file.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def _sum(self, which: str) -> Amount:
        query = f"SELECT total(dollars), sum(tokens), sum(calls) FROM amounts WHERE {which}"
        dollars, tokens, calls = self._file.execute(query).fetchone()
        return Amount(dollars, tokens or 0, calls or 0)


def _process_identity(process: int) -> str:
    """The process id, and its start time if the system has one; "" for a process that has ended. A restarted
    container gives the same ids to other processes."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    try:
        started = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        started = ""
    return f"{process} {started}"


class SpendingBudget:
    """A budget that chat models share: in this process, or, with a `file`, in all processes that name it.

    A call is let in if its upper bound fits beside what was spent and what others have reserved. If it fits
    only without the others, it waits for them to settle. So no limit is ever passed.
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
        """`spent` is what an earlier run used (`ledger.total` knows it). A file remembers by itself."""
        self.dollars, self.tokens, self.calls = dollars, tokens, calls
        self._account = Account(file, spent)
        # Another process that settles wakes nobody here.
        self._poll_s = 0.05 if file is not None else None
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._lock = threading.Lock()

    @property
    def spent(self) -> Amount:
        return self._account.spent()

    async def reserve(self, most: Amount) -> int:
        def fits(spent: Amount, held: Amount) -> bool:
            exceeded = self._exceeded(spent + most, spent)
            if exceeded:
                raise BudgetSpent(f"the budget is spent: {exceeded}")
            return not self._exceeded(spent + held + most, spent)

        while True:
            settled = asyncio.Event()
            with self._lock:  # before the look at the account, so that no settlement in between is missed
                self._waiting[settled] = asyncio.get_running_loop()
            try:
                number = self._account.hold(most, fits)
                if number is not None:
                    return number
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s):
                        await settled.wait()
            finally:
                with self._lock:
                    self._waiting.pop(settled, None)

    def settle(self, number: int, used: Amount) -> None:
        self._account.settle(number, used)
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for settled, loop in waiting.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(settled.set)

    def _exceeded(self, needed: Amount, spent: Amount) -> str:
        """Describe the limit that `needed` passes; "" if none."""
        # Sums of many small prices are rounded: a billionth of a dollar does not count.
        if self.dollars is not None and needed.dollars > self.dollars + 1e-9:
            return f"${spent.dollars:.4f} of ${self.dollars:.4f}, and the next call may take more"
        if self.tokens is not None and needed.tokens > self.tokens:
            return f"{spent.tokens} of {self.tokens} tokens, and the next call may take more"
        if self.calls is not None and needed.calls > self.calls:
            return f"all {self.calls} calls"
        return ""


class Budgeted(ChatWrapper):
    """Makes a call only if the budget has room. A failed call counts as a call and costs what is known."""

    def __init__(self, inner: ChatModel, budget: Spending, *, price: Price) -> None:
        super().__init__(inner)
        self.budget, self.price = budget, price

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        prompt_tokens = max_prompt_tokens(messages, options.get("tools"))
        number = await self.budget.reserve(self._amount(prompt_tokens, options["max_tokens"]))
        used = Amount(calls=1)
        try:
            reply = await self.inner.complete(messages, **options)
            used = self._amount(reply.prompt_tokens, reply.completion_tokens)
            return reply
        except TransientError as error:
            used = self._amount(error.usage.prompt_tokens, error.usage.completion_tokens)
            raise
        finally:
            self.budget.settle(number, used)

    def _amount(self, prompt: int, completion: int) -> Amount:
        cost = cost_of(self.price, prompt_tokens=prompt, completion_tokens=completion)
        return Amount(cost, max(0, prompt) + max(0, completion), 1)
