"""Every call is written down once, by any number of writers, and the lines can be summed."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from pathlib import Path

import pytest

from toolwright.failures import TaskFailure, UserError
from toolwright.providers import ChatReply, close
from toolwright.providers.budget import Amount, Budgeted, BudgetSpent, SpendingBudget
from toolwright.providers.ledger import LedgerTotal, Recorded, read, total
from toolwright.providers.settings import Price

from .chats import ASK, Simulated, said


def answers(n: int) -> ChatReply | Exception:
    if n == 1:
        return TaskFailure("too long")
    return ChatReply("a", (), 10, 5, cost=0.25, cached=n == 2)


def test_calls_are_summed_by_model(tmp_path: Path) -> None:
    path = tmp_path / "run" / "ledger.jsonl"

    async def all_of_them() -> None:
        for name in ("small", "large"):
            chat = Recorded(Simulated(answers, name=name), path, provider="simulated")
            for _ in range(4):
                with contextlib.suppress(TaskFailure):
                    await chat.complete(said("x"), **ASK)
            await close(chat)

    asyncio.run(all_of_them())
    sums = total(path)
    assert set(sums) == {"", "small", "large"}
    paid, cached, failed = sums["small"].paid, sums["small"].cached, sums["small"].failed
    assert (paid, cached, failed) == (Amount(dollars=0.5, tokens=30, calls=3), 1, 1)
    assert sums[""].paid == Amount(dollars=1.0, tokens=60, calls=6)
    line = next(read(path))
    assert (line["provider"], line["model"], line["cost"], line["finish"]) == (
        "simulated",
        "small",
        0.25,
        "stop",
    )


def test_half_a_line_of_a_killed_writer_is_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    chat = Recorded(Simulated(), path, provider="p")
    asyncio.run(chat.complete(said("x"), **ASK))
    with path.open("a") as file:
        file.write('{"time": 1, "mod')
    assert total(path)[""].paid.calls == 1


def test_no_ledger_comes_to_nothing(tmp_path: Path) -> None:
    assert total(tmp_path / "none.jsonl") == {"": LedgerTotal()}


def write_many(path: Path, name: str) -> None:
    chat = Recorded(Simulated(name=name), path, provider="p")

    async def many() -> None:
        for _ in range(200):
            await chat.complete(said("x"), **ASK)

    asyncio.run(many())


def test_processes_write_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    start = multiprocessing.get_context("spawn").Process
    children = [start(target=write_many, args=(path, f"m{number}")) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    calls = {name: one.paid.calls for name, one in total(path).items()}
    assert calls == {"": 600, "m0": 200, "m1": 200, "m2": 200}


def test_a_call_that_the_budget_refused_is_not_in_the_ledger(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    chat = Recorded(
        Budgeted(Simulated(), SpendingBudget(calls=1), price=Price(input=0, output=0)), path, provider="p"
    )

    async def twice() -> None:
        await chat.complete(said("x"), **ASK)
        with pytest.raises(BudgetSpent):
            await chat.complete(said("x"), **ASK)

    asyncio.run(twice())
    assert total(path)[""].paid.calls == 1


def test_a_ledger_that_cannot_be_written_is_reported_before_anything_is_paid_for(tmp_path: Path) -> None:
    inner = Simulated()
    chat = Recorded(inner, tmp_path, provider="p")  # a folder
    with pytest.raises(UserError, match="cannot be written as a ledger"):
        asyncio.run(chat.complete(said("x"), **ASK))
    assert not inner.asked
