"""No limit is ever passed, whoever asks at the same time; what failed is charged as what it was."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.waiting import wait_until
from toolwright.failures import InfrastructureFailure
from toolwright.providers import ChatReply
from toolwright.providers.budget import Amount, Budgeted, BudgetSpent, SpendingBudget
from toolwright.providers.chat import max_prompt_tokens
from toolwright.providers.settings import Price

from .chats import ASK, Simulated, said

FREE, DEAR = Price(input=0, output=0), Price(input=1000, output=5000)  # a dollar for 1000 tokens read


def held(budget: SpendingBudget) -> Amount:
    found: list[Amount] = []

    def look(_: Amount, now: Amount) -> bool:
        found.append(now)
        return False

    budget._account.hold(Amount(), look)
    return found[0]


def test_a_call_settles_at_what_it_took() -> None:
    budget = SpendingBudget(dollars=10)
    asyncio.run(Budgeted(Simulated(), budget, price=DEAR).complete(said("x"), **ASK))
    assert budget.spent == Amount(dollars=0.005 + 0.035, tokens=12, calls=1)


def test_negative_usage_does_not_refill_a_budget() -> None:
    budget, inner = SpendingBudget(dollars=10), Simulated(lambda n: ChatReply("a", (), -5000, -7000))
    asyncio.run(Budgeted(inner, budget, price=DEAR).complete(said("x"), **ASK))
    assert budget.spent == Amount(calls=1)


def test_a_call_that_could_exceed_a_limit_is_not_made() -> None:
    inner = Simulated()
    for budget in (SpendingBudget(dollars=0.05), SpendingBudget(tokens=20), SpendingBudget(calls=0)):
        with pytest.raises(BudgetSpent, match="the budget is spent"):
            asyncio.run(Budgeted(inner, budget, price=DEAR).complete(said("x"), **ASK))
    assert inner.asked == []


def test_calls_side_by_side_wait_for_each_other_near_the_end_and_use_the_whole_budget() -> None:
    """The bound of a call is far above what it takes: refusing at once would leave most of it unspent."""
    most = max_prompt_tokens(said("x"), None) + ASK["max_tokens"]
    budget = SpendingBudget(tokens=12 * 10 + most)
    chat = Budgeted(Simulated(pause_s=0.001), budget, price=FREE)

    async def many() -> list[ChatReply | BaseException]:
        return await asyncio.gather(
            *(chat.complete(said("x"), **ASK) for _ in range(40)), return_exceptions=True
        )

    answers = asyncio.run(many())
    done = [answer for answer in answers if isinstance(answer, ChatReply)]
    assert all(isinstance(answer, ChatReply | BudgetSpent) for answer in answers)
    assert len(done) == 11
    assert budget.spent.tokens == 12 * 11


@settings(max_examples=60, deadline=None)
@given(
    limit=st.integers(0, 400),
    took=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), min_size=1, max_size=12),
)
def test_spending_never_passes_the_limit(limit: int, took: list[tuple[int, int]]) -> None:
    answers = [ChatReply("", (), read, written) for read, written in took]
    budget = SpendingBudget(tokens=limit)
    chat = Budgeted(Simulated(lambda n: answers[n % len(answers)]), budget, price=FREE)

    async def many() -> None:
        await asyncio.gather(*(chat.complete(said("x"), **ASK) for _ in took), return_exceptions=True)
        assert budget.spent.tokens <= limit

    asyncio.run(many())
    assert held(budget) == Amount()


def test_threads_share_a_budget() -> None:
    budget = SpendingBudget(calls=50)
    inner = Simulated()

    def spend() -> None:
        async def until_spent() -> None:
            chat = Budgeted(inner, budget, price=FREE)
            with contextlib.suppress(BudgetSpent):
                while True:
                    await chat.complete(said("x"), **ASK)

        asyncio.run(until_spent())

    threads = [threading.Thread(target=spend) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert budget.spent.calls == len(inner.asked) == 50


def test_a_failed_call_counts_as_a_call_and_gives_its_room_back() -> None:
    budget = SpendingBudget(calls=5, tokens=1000)
    chat = Budgeted(Simulated(lambda n: InfrastructureFailure("gone")), budget, price=FREE)
    with pytest.raises(InfrastructureFailure):
        asyncio.run(chat.complete(said("x"), **ASK))
    assert budget.spent == Amount(calls=1)
    assert held(budget) == Amount()


def test_a_cancelled_call_gives_its_room_back() -> None:
    budget = SpendingBudget(tokens=1000)
    chat = Budgeted(Simulated(pause_s=30), budget, price=FREE)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(chat.complete(said("x"), **ASK), 0.01)

    asyncio.run(give_up())
    assert held(budget) == Amount()


def test_what_was_spent_before_counts() -> None:
    budget = SpendingBudget(calls=3, spent=Amount(calls=2))
    chat = Budgeted(Simulated(), budget, price=FREE)
    asyncio.run(chat.complete(said("x"), **ASK))
    with pytest.raises(BudgetSpent, match="all 3 calls"):
        asyncio.run(chat.complete(said("x"), **ASK))


CHILD = """
import asyncio, sys
from pathlib import Path
from tests.providers.chats import ASK, Simulated, said
from toolwright.providers.budget import SpendingBudget, Budgeted, BudgetSpent
from toolwright.providers.settings import Price

async def main(path, pause_s):
    budget = SpendingBudget(calls=100, file=Path(path))
    chat = Budgeted(Simulated(pause_s=float(pause_s)), budget, price=Price(input=0, output=0))
    made = 0
    print("ready", flush=True)
    try:
        while True:
            made += len(await asyncio.gather(*(chat.complete(said("x"), **ASK) for _ in range(4))))
    except BudgetSpent:
        print(len(chat.inner.asked))
asyncio.run(main(*sys.argv[1:]))
"""


def child(path: Path, pause_s: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", CHILD, str(path), str(pause_s)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_processes_share_a_budget_in_a_file_also_with_one_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "budget"
    killed = child(path, 600)
    assert killed.stdout is not None
    killed.stdout.readline()
    wait_until(lambda: held(SpendingBudget(file=path)).calls == 4, "four calls are under way")
    killed.kill()
    killed.communicate()
    others = [child(path, 0.001) for _ in range(2)]
    asked = [int(running.communicate(timeout=400)[0].split()[-1]) for running in others]
    assert sum(asked) == 96  # the four of the killed one count: nobody knows what became of them
    assert SpendingBudget(file=path).spent.calls == 100


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="nothing here tells when a process began")
def test_what_a_killed_process_held_is_not_taken_for_that_of_the_next_with_its_number(tmp_path: Path) -> None:
    """In a container that is started again, numbers begin again as well."""
    path = tmp_path / "budget"
    asyncio.run(SpendingBudget(calls=2, file=path).reserve(Amount(calls=1)))
    with sqlite3.connect(path) as books:  # as one who began at another time has left it
        books.execute("UPDATE amounts SET process = ?", (f"{os.getpid()} 1",))
    budget = SpendingBudget(calls=2, file=path)
    asyncio.run(budget.reserve(Amount(calls=1)))
    assert budget.spent.calls == 1
