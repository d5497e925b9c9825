"""The native engine's own promises: slots refill, nothing is computed twice, nobody waits for nothing."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.engines import Completion, Sampling
from toolwright.engines.native.engine import NativeEngine
from toolwright.failures import InfrastructureFailure
from toolwright.models.decoder import Decoder

from .conftest import ask, ask_one, make

ENDLESS = tiny.characters(ends=False)
PROMPT = ENDLESS.encode("<|user|>12+34=<|end|><|assistant|>")


def engine_of(model: Decoder, **settings: Any) -> NativeEngine:
    engine = make("native", model, ENDLESS, **settings)
    assert isinstance(engine, NativeEngine)
    return engine


def watch(model: Decoder, seen: Callable[[Tensor], None]) -> Decoder:
    """`seen` is told of the tokens of every pass, before it."""
    plain = model.entered

    def entered(tokens: Tensor, positions: Tensor, embedding: Tensor) -> tuple[Tensor, Tensor]:
        seen(tokens)
        return plain(tokens, positions, embedding)

    model.entered = entered  # type: ignore[method-assign]
    return model


def idle(engine: NativeEngine) -> bool:
    """Every slot can be had again and nobody is waited for."""
    free, parked = engine.cache.free, [p.slot for p in engine.cache.parked.values()]
    return sorted([*free, *parked]) == list(range(engine.cache.slots)) and not engine.active


class TestSlots:
    @pytest.mark.parametrize("slots", [1, 2, 5])
    def test_refill_as_soon_as_a_sequence_ends(self, slots: int) -> None:
        passes: list[int] = []
        model = watch(tiny.decoder(), lambda tokens: passes.append(len(tokens)))
        engine = engine_of(model, slots=slots)
        lengths = [2, 20, 3, 3, 3, 3, 3, 3] if slots > 1 else [2, 3]
        answers = ask(
            engine, [(PROMPT, Sampling(max_tokens=n, seed=i), str(i)) for i, n in enumerate(lengths)]
        )
        assert [len(a.tokens) for a in answers] == lengths
        assert idle(engine)
        # The long one sets the pace where there is room beside it; each admission takes one pass more.
        if slots > 1:
            assert len(passes) <= max(lengths) + len(lengths)

    def test_are_never_more_than_were_asked_for(self) -> None:
        engine = engine_of(tiny.decoder(), slots=3)
        most: list[int] = []
        watch(engine.decoder, lambda _: most.append(len(engine.active)))
        ask(engine, [(PROMPT, Sampling(max_tokens=5, seed=i), str(i)) for i in range(10)])
        assert max(most) == 3

    def test_slots_that_attempts_left_are_closed_up(self) -> None:
        """So that few long answers at a batch's end do not cost as much as all of it."""
        rows: list[int] = []
        engine = engine_of(watch(tiny.decoder(), lambda tokens: rows.append(len(tokens))), slots=64)

        async def attempt(number: int, length: int) -> None:
            await engine.generate(PROMPT, Sampling(max_tokens=length, seed=number), attempt=str(number))
            engine.release(str(number))

        async def all_of_them() -> None:
            await asyncio.gather(*(attempt(i, n) for i, n in enumerate([2] * 63 + [30])))

        asyncio.run(all_of_them())
        assert max(rows) >= 64
        assert rows[-1] < 32

    def test_kept_between_turns_go_to_whoever_needs_one(self) -> None:
        engine = engine_of(tiny.decoder(), slots=2, timeout_s=300)

        async def many_never_come_back() -> None:
            for i in range(6):
                await engine.generate(PROMPT, Sampling(max_tokens=2, seed=i), attempt=str(i))

        asyncio.run(many_never_come_back())
        assert idle(engine)
        assert len(engine.cache.parked) == 2

    def test_are_all_free_once_attempts_are_over(self) -> None:
        engine = engine_of(tiny.decoder(), slots=4)
        ask(engine, [(PROMPT, Sampling(max_tokens=4, seed=i), str(i)) for i in range(9)])
        assert sorted(engine.cache.free) == [0, 1, 2, 3]
        assert not engine.cache.parked

    def test_are_not_lost_where_one_attempt_takes_two_turns_at_once(self) -> None:
        engine = engine_of(tiny.decoder(), slots=4)

        async def twice() -> None:
            for _ in range(3):
                asked = (engine.generate(PROMPT, Sampling(max_tokens=3), attempt="a") for _ in range(3))
                await asyncio.gather(*asked)

        asyncio.run(twice())
        assert idle(engine)


def test_a_caller_that_answers_at_once_is_in_the_next_pass() -> None:
    """A call by HTTP takes some turns of the event loop to get here. None of them may cost a pass."""
    passes: list[int] = []
    engine = engine_of(watch(tiny.decoder(), lambda tokens: passes.append(len(tokens))), slots=2)
    turns: list[int] = []

    async def short() -> None:
        for turn in range(8):
            await engine.generate(PROMPT, Sampling(max_tokens=1, seed=turn), attempt="short")
            engine.release("short")
            turns.append(len(passes))
            for _ in range(3):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(
            engine.generate(PROMPT, Sampling(max_tokens=40), attempt="long"),
            short(),
        )

    asyncio.run(both())
    decoded = [after - before for before, after in pairwise(turns)]
    assert max(decoded) <= 2  # its own, and one of the long answer's


class TestNothingIsComputedTwice:
    def test_a_prompt_that_attempts_share_is_computed_once(self) -> None:
        passes: list[Tensor] = []
        engine = engine_of(watch(tiny.decoder(), passes.append), slots=32)
        ask(engine, [(PROMPT * 2, Sampling(max_tokens=1, seed=i), str(i)) for i in range(32)])
        assert [len(tokens) for tokens in passes] == [len(PROMPT) * 2]

    def test_a_next_turn_computes_only_what_is_new(self) -> None:
        passes: list[Tensor] = []
        engine = engine_of(watch(tiny.decoder(), passes.append))

        async def two_turns() -> None:
            first = await engine.generate(PROMPT * 3, Sampling(max_tokens=4), attempt="a")
            passes.clear()
            tokens = [*PROMPT * 3, *first.tokens, *ENDLESS.encode("=9")]
            await engine.generate(tokens, Sampling(max_tokens=1), attempt="a")

        asyncio.run(two_turns())
        (only,) = passes
        assert len(only) < len(PROMPT) * 3

    def test_after_publishing_the_whole_prompt_is_computed_again(self) -> None:
        passes: list[Tensor] = []
        engine = engine_of(watch(tiny.decoder(), passes.append))

        async def two_turns() -> list[int]:
            first = await engine.generate(PROMPT * 3, Sampling(max_tokens=4), attempt="a")
            tokens = [*PROMPT * 3, *first.tokens]
            engine.publish(1)
            passes.clear()
            await engine.generate(tokens, Sampling(max_tokens=1), attempt="a")
            return tokens

        tokens = asyncio.run(two_turns())
        assert passes[0].tolist() == tokens


class TestAFaultInTheEngine:
    """Reaches everyone who waits, those whose turn had not begun included, and leaves the engine usable."""

    @pytest.mark.parametrize("when", [1, 2, 3, 6])  # the first pass is the prompts', the others decode
    def test_reaches_every_waiter(self, when: int) -> None:
        count = 0

        def fault(_: Tensor) -> None:
            nonlocal count
            count += 1
            if count == when:
                raise RuntimeError("out of memory")

        engine = engine_of(watch(tiny.decoder(), fault), slots=3, timeout_s=300)

        async def many() -> list[Completion | BaseException]:
            asked = (
                engine.generate(PROMPT, Sampling(max_tokens=10, seed=i), attempt=str(i)) for i in range(8)
            )
            return await asyncio.gather(*asked, return_exceptions=True)

        answers = asyncio.run(many())
        assert [str(a) for a in answers] == ["out of memory"] * 8
        assert idle(engine)
        again = ask(engine, [(PROMPT, Sampling(max_tokens=10, seed=i), str(i)) for i in range(8)])
        plain = engine_of(tiny.decoder())
        assert [a.tokens for a in again] == [
            ask_one(plain, PROMPT, Sampling(max_tokens=10, seed=i)).tokens for i in range(8)
        ]

    def test_closing_tells_those_who_still_wait(self) -> None:
        engine = engine_of(tiny.decoder(), slots=1, timeout_s=300)

        async def close_early() -> list[Completion | BaseException]:
            asked = [
                asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=30), attempt=str(i)))
                for i in range(3)
            ]
            for _ in range(5):
                await asyncio.sleep(0)
            await engine.close()
            return await asyncio.gather(*asked, return_exceptions=True)

        for answer in asyncio.run(close_early()):
            assert isinstance(answer, InfrastructureFailure)
            assert str(answer) == "the native engine was closed"

    def test_a_turn_that_took_too_long_gives_its_place_back(self) -> None:
        engine = engine_of(tiny.decoder(), slots=2, timeout_s=0.02)

        async def overload() -> list[Completion | BaseException]:
            asked = (
                engine.generate(PROMPT, Sampling(max_tokens=50), attempt=f"attempt {i}") for i in range(40)
            )
            return await asyncio.gather(*asked, return_exceptions=True)

        late = [a for a in asyncio.run(overload()) if isinstance(a, BaseException)]
        assert late
        assert all(isinstance(error, InfrastructureFailure) for error in late)
        engine.timeout_s = 300
        requests = [(PROMPT, Sampling(max_tokens=4, seed=s), str(s)) for s in range(4)]
        assert len(ask(engine, requests)) == 4
        assert idle(engine)


@pytest.mark.filterwarnings("ignore:this machine reports AMX")
class TestPrecision:
    def test_float32_is_exact_and_bfloat16_does_not_claim_to_be(self) -> None:
        assert engine_of(tiny.decoder()).exact
        assert not engine_of(tiny.decoder(), dtype=torch.bfloat16).exact

    def test_bfloat16_generates_about_the_same(self) -> None:
        model = tiny.decoder()
        low = engine_of(model, dtype=torch.bfloat16)
        answer = ask_one(low, PROMPT, Sampling(max_tokens=20, seed=1))
        tokens = [*PROMPT, *answer.tokens]
        wanted = tiny.logits(model, tokens).log_softmax(-1)[len(PROMPT) - 1 : -1]
        wanted = wanted.gather(1, torch.tensor(answer.tokens)[:, None])[:, 0]
        assert answer.log_probs == pytest.approx(wanted.tolist(), abs=0.3)


def test_what_was_begun_with_old_weights_is_not_kept_for_the_next_turn() -> None:
    engine = engine_of(tiny.decoder())

    async def publish_meanwhile() -> Completion:
        turn = asyncio.create_task(engine.generate(PROMPT, Sampling(max_tokens=12), attempt="a"))
        while not engine.active:
            await asyncio.sleep(0)
        engine.publish(1)
        return await turn

    assert len(asyncio.run(publish_meanwhile()).tokens) == 12
    assert not engine.cache.parked
    assert idle(engine)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("engines.native.cache.MOST_RUNS", 0),
        ("engines.native.cache.MOST_RUNS", 64),
        ("models.products.PACKED_AT_ONCE", 1),
    ],
)
def test_ways_to_the_same_numbers(setting: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys written a slot or a run of slots at a time, matrices laid out whole or by a panel: bit for bit."""

    def answers(model: Decoder) -> list[Completion]:
        engine = engine_of(model, slots=8)
        prompts = [PROMPT, PROMPT, PROMPT[:5], PROMPT[:5], PROMPT, PROMPT[:3], PROMPT[:3], PROMPT]
        requests = [
            (prompt, Sampling(max_tokens=20 - number, seed=number), str(number))
            for number, prompt in enumerate(prompts)
        ]
        found = ask(engine, requests)
        with torch.no_grad():
            model.get_parameter("layers.0.gate_up.weight").mul_(1.5)
        engine.publish(1)
        return [*found, *ask(engine, requests)]

    wanted = answers(tiny.decoder())
    assert [one.log_probs for one in wanted[:8]] != [one.log_probs for one in wanted[8:]], "new weights"
    monkeypatch.setattr(f"toolwright.{setting}", value)
    assert answers(tiny.decoder()) == wanted


def test_slots_that_nobody_has_written_to_take_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    before = resident()
    engine = engine_of(tiny.decoder(context=16_384), slots=128)
    mapped = engine.cache.keys.nbytes + engine.cache.values.nbytes
    assert mapped >= 1 << 30
    assert resident() - before < mapped / 8
    assert not engine.cache.keys[:, 3].any()
