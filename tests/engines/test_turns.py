"""How a turn is waited for, by any engine."""

from __future__ import annotations

import asyncio

import pytest

from toolwright.engines.turns import turn_of
from toolwright.failures import InfrastructureFailure


def test_a_cancelled_turn_stays_cancelled_if_its_answer_arrives() -> None:
    async def both() -> bool:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting = asyncio.create_task(turn_of("a", answer, who="an engine", limit_s=60))
        await asyncio.sleep(0)
        answer.set_result(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        return waiting.cancelled()

    assert asyncio.run(both())


def test_a_turn_that_takes_too_long_is_named_and_given_up() -> None:
    async def forever() -> bool:
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        with pytest.raises(
            InfrastructureFailure, match=r"an engine did not finish a turn of a within 0\.01 s"
        ):
            await turn_of("a", answer, who="an engine", limit_s=0.01)
        return answer.cancelled()

    assert asyncio.run(forever())
