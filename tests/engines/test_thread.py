"""An engine in a thread of its own: the same answers, from any loop, heard as they are written."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence

from tests import tiny
from toolwright.engines import Completion, Engine, SampledToken, Sampling
from toolwright.engines.thread import InThread

from .conftest import make

PROMPT = tiny.characters().encode("1+2=")


def engine(slots: int = 4) -> Engine:
    return make("native", tiny.decoder(), tiny.characters(ends=False), slots=slots)


class Deaf:
    """An engine that cannot be listened to."""

    takes_weights = True

    def __init__(self) -> None:
        self.inner = engine()
        self.exact, self.context, self.weights_version = True, self.inner.context, 0
        self.release, self.publish, self.close = self.inner.release, self.inner.publish, self.inner.close

    async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
        return await self.inner.generate(prompt, sampling, attempt=attempt)


def asked(running: InThread, sampling: Sampling) -> tuple[Completion, list[SampledToken]]:
    heard: list[SampledToken] = []
    answer = asyncio.run(running.generate(PROMPT, sampling, attempt="a", on_token=heard.append))
    running.release("a")
    return answer, heard


def test_streamed_tokens_are_those_of_the_answer() -> None:
    sampling = Sampling(max_tokens=12, seed=3, top=2)
    direct = asyncio.run(engine().generate(PROMPT, sampling, attempt="a"))
    for own in (engine(), Deaf()):
        running = InThread(own)
        answer, heard = asked(running, sampling)
        assert (answer.tokens, answer.log_probs, answer.top) == (direct.tokens, direct.log_probs, direct.top)
        assert heard == answer.sampled
        asyncio.run(running.close())


def test_the_likeliest_tokens_are_those_of_one_plain_pass() -> None:
    answer = asyncio.run(engine().generate(PROMPT, Sampling(max_tokens=6, seed=1, top=3), attempt="a"))
    whole = tiny.logits(tiny.decoder(), [*PROMPT, *answer.tokens]).log_softmax(-1)
    for place, row in enumerate(answer.top):
        values, tokens = whole[len(PROMPT) + place - 1].topk(3)
        assert row == tuple(zip(tokens.tolist(), values.tolist(), strict=True))


def test_an_abandoned_turn_leaves_its_slot() -> None:
    running = InThread(engine(slots=1))

    async def give_up_and_ask_again() -> Completion:
        long = asyncio.create_task(running.generate(PROMPT, Sampling(max_tokens=50), attempt="long"))
        await asyncio.sleep(0.01)
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        return await running.generate(PROMPT, Sampling(max_tokens=3), attempt="short")

    assert len(asyncio.run(give_up_and_ask_again()).tokens) == 3
    asyncio.run(running.close())


def test_two_loops_ask_at_the_same_time() -> None:
    running = InThread(engine())
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        sampling = Sampling(max_tokens=20, seed=number)
        found[number] = asyncio.run(running.generate(PROMPT, sampling, attempt=str(number))).tokens

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, tokens in found.items():
        assert tokens == asked(running, Sampling(max_tokens=20, seed=number))[0].tokens
    asyncio.run(running.close())


def test_a_pass_keeps_nobody_waiting() -> None:
    class Slow(Deaf):
        async def generate(self, prompt: Sequence[int], sampling: Sampling, *, attempt: str) -> Completion:
            time.sleep(1)  # as a long prompt does
            return await super().generate(prompt, sampling, attempt=attempt)

    running = InThread(Slow())

    async def look_around() -> int:
        answer = asyncio.create_task(running.generate(PROMPT, Sampling(max_tokens=1), attempt="a"))
        looks = 0
        while not answer.done():
            await asyncio.sleep(0.01)
            looks += 1
        return looks

    assert asyncio.run(look_around()) > 1
    asyncio.run(running.close())
