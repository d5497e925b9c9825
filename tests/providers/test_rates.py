"""Limits are kept in any minute, and passing troubles are tried again; what the caller got wrong is not."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers import ChatReply
from toolwright.providers.chat import TransientError
from toolwright.providers.rates import MINUTE_S, RateLimit, RateLimited, Retrying
from toolwright.providers.settings import ProviderLimits

from .chats import ASK, Simulated, said


@given(
    limit=st.integers(1, 20),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), min_size=1, max_size=40),
)
def test_no_minute_takes_more_than_its_limit(limit: int, steps: list[tuple[int, int]]) -> None:
    now = 0.0
    allowance = RateLimit(limit, clock=lambda: now)
    taken: list[tuple[float, int]] = []
    for pause, amount in steps:
        now += pause
        while (wait := allowance.wait_s(amount)) > 0:
            now += wait
        allowance.take(amount)
        taken.append((now, amount))
    for at, _ in taken:
        inside = [amount for when, amount in taken if at - MINUTE_S < when <= at]
        assert sum(inside) <= limit or len(inside) == 1


def test_no_more_calls_side_by_side_than_allowed() -> None:
    inner = Simulated(pause_s=0.005)
    chat = RateLimited(inner, ProviderLimits(concurrency=3))

    async def many() -> None:
        await asyncio.gather(*(chat.complete(said("x"), **ASK) for _ in range(12)))

    asyncio.run(many())
    assert (len(inner.asked), inner.most) == (12, 3)


def test_the_third_of_two_a_minute_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwright.providers.rates.MINUTE_S", 0.3)
    chat = RateLimited(Simulated(), ProviderLimits(requests_a_minute=2))

    async def three() -> list[float]:
        started = time.monotonic()
        times = []
        for _ in range(3):
            await chat.complete(said("x"), **ASK)
            times.append(time.monotonic() - started)
        return times

    times = asyncio.run(three())
    assert times[2] >= 0.3


def test_tokens_are_settled_at_what_was_used() -> None:
    chat = RateLimited(Simulated(), ProviderLimits(tokens_a_minute=100))
    asyncio.run(chat.complete(said("x" * 300), **ASK))  # is thought to take more than it does
    assert chat._tokens.wait_s(88) == 0
    assert chat._tokens.wait_s(89) > 0


def test_a_passing_trouble_is_tried_again() -> None:
    inner = Simulated(lambda n: TransientError("busy") if n < 2 else ChatReply("yes"))
    chat = Retrying(inner, retries=3, first_s=0.001)
    assert asyncio.run(chat.complete(said("x"), **ASK)).text == "yes"
    assert len(inner.asked) == 3


def test_the_last_try_says_how_many_there_were() -> None:
    inner = Simulated(lambda n: TransientError("m at u answered 529: overloaded"))
    with pytest.raises(InfrastructureFailure, match=r"m at u answered 529: overloaded \(3 tries\)"):
        asyncio.run(Retrying(inner, retries=2, first_s=0.001).complete(said("x"), **ASK))
    assert len(inner.asked) == 3


@pytest.mark.parametrize("error", [TaskFailure("too long"), UserError("no such model"), ValueError("bug")])
def test_a_permanent_error_is_raised_at_once(error: Exception) -> None:
    inner = Simulated(lambda n: error)
    with pytest.raises(type(error)):
        asyncio.run(Retrying(inner, retries=5, first_s=0.001).complete(said("x"), **ASK))
    assert len(inner.asked) == 1


def test_retry_after_of_a_server_is_honoured() -> None:
    chat = Retrying(Simulated(), retries=3, first_s=0.01)
    assert chat._pause(0, 7.0) == 7.0
    assert chat._pause(0, 10_000.0) == 60.0
    assert 0.02 <= chat._pause(2, None) <= 0.04
