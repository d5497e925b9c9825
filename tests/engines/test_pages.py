"""The paged cache: memory follows use, beginnings are shared, and no result depends on any of it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.config import schema
from toolwright.engines import Completion, Sampling
from toolwright.engines.native import build
from toolwright.engines.native.engine import NativeEngine
from toolwright.engines.native.paged_cache import CacheSize, PagedCache, PagePool
from toolwright.failures import UserError
from toolwright.models.decoder import Decoder

from .conftest import ask

MODEL = tiny.decoder(kv_heads=2)
CONTEXT = MODEL.shape.context
ENDLESS = tiny.characters(ends=False)


def engine_of(model: Decoder = MODEL, *, slots: int = 8, **params: int) -> NativeEngine:
    config = schema.EngineConfig(slots=slots, timeout_s=300, params=params)
    return build(config, decoder=model, tokenizer=ENDLESS, dtype=torch.float32)


def paged(engine: NativeEngine) -> PagedCache:
    assert isinstance(engine.cache, PagedCache)
    return engine.cache


def check_pages(cache: PagedCache) -> None:
    """Every page is free, idle or held, each by as many as hold it; nobody writes where another reads."""
    pool = cache.pool
    held = Counter(page for pages in cache.held for page in pages)
    held.update(page for parked in cache.parked.values() for page in parked.pages)
    assert {page: count for page, count in enumerate(pool.holders) if count} == held
    assert pool.held == len(held)
    assert pool.uses == sum(held.values())
    assert sorted([*pool.free, *pool.idle, *held]) == list(range(1, pool.count + 1))
    for slot, pages in enumerate(cache.held):
        assert cache.table[slot].tolist() == pages + [0] * (cache.width - len(pages))
        assert not pages or slot not in cache.free


def prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 7 + place * place) % 15 for place in range(length)]


@dataclass(frozen=True)
class Turn:
    arrives: int  # after so many rounds
    opening: int  # which of some prompts
    length: int
    answer: int
    again: int  # tokens after its answer that a second turn begins with; 0: there is none
    cut: int  # tokens that are taken from its end before
    cancelled: int  # after so many rounds; 0: never


TURNS = st.builds(
    Turn,
    arrives=st.integers(0, 6),
    opening=st.integers(0, 2),
    length=st.sampled_from([1, 4, 7, 8, 16, 21, 40]),
    answer=st.integers(1, 14),
    again=st.sampled_from([0, 0, 3]),
    cut=st.sampled_from([0, 0, 1, 6, 20]),
    cancelled=st.sampled_from([0, 0, 0, 2, 5]),
)


def played(
    engine: NativeEngine, turns: Sequence[Turn], published: Sequence[int]
) -> list[list[Completion] | None]:
    """The answers to each; None: it was cancelled. `published`: after which rounds, the same weights."""

    async def one(number: int, turn: Turn) -> list[Completion]:
        for _ in range(turn.arrives):
            await asyncio.sleep(0)
        tokens, answers = prompt(turn.opening, turn.length), []
        for length in (turn.answer, 2)[: 1 + bool(turn.again)]:
            sampling = Sampling(max_tokens=length, seed=number)
            answers.append(await engine.generate(tokens, sampling, attempt=str(number)))
            whole = [*tokens, *answers[-1].tokens]
            tokens = [*whole[: max(1, len(whole) - turn.cut)], *prompt(number, turn.again)]
        engine.release(str(number))
        return answers

    async def every() -> list[Any]:
        tasks = [asyncio.create_task(one(number, turn)) for number, turn in enumerate(turns)]
        for number in range(1, 12):
            await asyncio.sleep(0)
            if isinstance(engine.cache, PagedCache):
                check_pages(engine.cache)
            if number in published:
                engine.publish(engine.weights_version + 1)
            for turn, task in zip(turns, tasks, strict=True):
                if turn.cancelled == number:
                    task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(every())
    for number in range(len(turns)):
        engine.release(str(number))
    return [None if isinstance(one, asyncio.CancelledError) else one for one in found]


def said(answers: list[Completion] | None) -> Any:
    assert isinstance(answers, list), answers
    return [(answer.tokens, answer.log_probs) for answer in answers]


@given(
    turns=st.lists(TURNS, min_size=1, max_size=10),
    page_tokens=st.sampled_from([1, 3, 8, 16, 64]),
    slots=st.integers(1, 6),
    spare=st.integers(0, 200),
    published=st.lists(st.integers(1, 11), max_size=2),
)
@settings(max_examples=15, deadline=None)
def test_results_are_those_of_slots_whatever_the_pages(
    turns: list[Turn], page_tokens: int, slots: int, spare: int, published: list[int]
) -> None:
    engine = engine_of(slots=slots, page_tokens=page_tokens, cache_tokens=CONTEXT + page_tokens + spare)
    found = played(engine, turns, published)
    wanted = played(engine_of(), [replace(turn, cancelled=0) for turn in turns], [])
    for turn, mine, theirs in zip(turns, found, wanted, strict=True):
        if not turn.cancelled or mine is not None:
            assert said(mine) == said(theirs)
    check_pages(paged(engine))
    assert paged(engine).pool.held == 0
    assert sorted(paged(engine).free) == list(range(slots))
    engine.publish(99)
    assert len(paged(engine).pool.free) == paged(engine).pool.count


class TestSharing:
    def test_a_group_of_attempts_holds_its_prompt_once(self) -> None:
        engine = engine_of(slots=200, page_tokens=4)
        opening = prompt(1, 42)
        ask(engine, [(opening, Sampling(max_tokens=2, seed=i), str(i)) for i in range(200)])
        # Ten full pages together, and each the rest of the prompt and what it draws.
        assert paged(engine).pool.peak <= 10 + 200 * 2
        assert paged(engine).pool.peak_saved >= 10 * 199

    def test_prompts_that_begin_alike_are_computed_from_where_they_differ(self) -> None:
        passes: list[int] = []
        model = tiny.decoder(kv_heads=2)
        plain = model.entered

        def entered(tokens: Any, *rest: Any) -> Any:
            passes.append(len(tokens))
            return plain(tokens, *rest)

        model.entered = entered  # type: ignore[method-assign]
        engine = engine_of(model, page_tokens=8)
        common = prompt(1, 33)
        ask(engine, [([*common, 3 + i], Sampling(max_tokens=1, seed=i), str(i)) for i in range(6)])
        assert passes == [34, 5 * 2]
        passes.clear()
        ask(engine, [([*common, 9, 9], Sampling(max_tokens=1), "later")])
        assert passes == [3]
        engine.publish(1)
        passes.clear()
        ask(engine, [([*common, 9, 9], Sampling(max_tokens=1), "after new weights")])
        assert passes == [35]

    def test_what_another_attempt_reads_is_never_written_to(self) -> None:
        """An attempt whose next prompt differs from what it had leaves the pages of others as they are."""
        engine, plain = engine_of(page_tokens=4), engine_of()
        other = [*prompt(1, 14), *prompt(2, 9)]
        turns = [("a", prompt(1, 30)), ("b", prompt(1, 30)), ("a", other)]
        turns += [("b", [*prompt(1, 30), 5, 6]), ("c", [*prompt(1, 30), 7])]

        async def answers(engine: NativeEngine) -> list[Any]:
            found = []
            for attempt, opening in turns:
                answer = await engine.generate(opening, Sampling(max_tokens=3), attempt=attempt)
                found.append((answer.tokens, answer.log_probs))
            return found

        assert asyncio.run(answers(engine)) == asyncio.run(answers(plain))
        check_pages(paged(engine))


class TestAFullCache:
    def test_suspends_the_youngest_and_changes_no_result(self) -> None:
        requests = [(prompt(i, 20), Sampling(max_tokens=40, seed=i), str(i)) for i in range(6)]
        engine = engine_of(slots=6, page_tokens=4, cache_tokens=160)
        suspended: list[int] = []
        plain = engine._suspend

        def suspend(cache: PagedCache, sequence: Any) -> None:
            suspended.append(sequence.arrival)
            plain(cache, sequence)

        engine._suspend = suspend  # type: ignore[method-assign]
        found = ask(engine, requests)
        assert suspended
        assert 1 not in suspended, "the oldest goes on"
        assert found == ask(engine_of(slots=6), requests)
        assert paged(engine).pool.peak <= 160 // 4

    def test_takes_from_those_that_are_parked_first(self) -> None:
        engine = engine_of(slots=4, page_tokens=4, cache_tokens=CONTEXT)

        async def many_never_come_back() -> None:
            for i in range(6):
                await engine.generate(prompt(i, 20), Sampling(max_tokens=20, seed=i), attempt=str(i))

        asyncio.run(many_never_come_back())
        assert list(paged(engine).parked) == ["5"]
        check_pages(paged(engine))

    def test_that_does_not_hold_one_sequence_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"does not hold one sequence of model\.context=64"):
            engine_of(page_tokens=8, cache_tokens=32)

    @pytest.mark.parametrize("params", [{"page_tokens": 0}, {"cache_token": 64}])
    def test_settings_are_checked(self, params: dict[str, int]) -> None:
        with pytest.raises(UserError, match=r"engine\.params\.(page_tokens=0|cache_token is unknown)"):
            engine_of(**params)


def test_a_long_prompt_is_read_in_parts_while_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwright.engines.native.engine.PREFILL_TOKENS", 10)
    engine = engine_of(page_tokens=8)
    heard: list[str] = []

    async def beside() -> tuple[Completion, Completion]:
        first = asyncio.create_task(
            engine.generate(
                prompt(2, 5),
                Sampling(max_tokens=20, seed=1),
                attempt="short",
                on_token=lambda _: heard.append("short"),
            )
        )
        while len(heard) < 3:
            await asyncio.sleep(0)
        second = engine.generate(
            prompt(1, 50), Sampling(max_tokens=3), attempt="long", on_token=lambda _: heard.append("long")
        )
        return await asyncio.gather(first, second)

    found = asyncio.run(beside())
    assert heard[3:].index("long") >= 4, "a part of ten tokens before each token of the other"
    monkeypatch.undo()
    requests = [(prompt(2, 5), Sampling(max_tokens=20, seed=1), "short")]
    requests.append((prompt(1, 50), Sampling(max_tokens=3), "long"))
    assert list(found) == ask(engine_of(), requests)


def test_memory_follows_use_and_not_the_context() -> None:
    shape = tiny.shape(context=32_768)
    fewest = CacheSize.fewest(shape.context)
    assert fewest.tokens == shape.context
    each = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
    fitting = CacheSize.fitting(1024, shape, torch.float32, free=each * 100_000)
    assert 39_000 <= fitting.tokens <= 40_000
    with pytest.raises(UserError, match=r"lower model\.context"):
        CacheSize.fitting(1024, shape, torch.float32, free=each * 50_000)
    model = tiny.decoder(context=32_768)
    engine = engine_of(model, slots=64, page_tokens=64, cache_tokens=40_000)
    ask(engine, [(prompt(i, 30), Sampling(max_tokens=4, seed=i), str(i)) for i in range(64)])
    assert paged(engine).pool.peak == 64


class TestPool:
    def test_pages_that_nobody_holds_are_found_until_they_are_needed(self) -> None:
        pool = PagePool(4, 2)
        first = pool.take(2)
        pool.remember([1, 2, 3, 4], first)
        pool.give_back(first)
        assert pool.find([1, 2, 3, 4, 5]) == first
        assert pool.room == 4
        pool.take(3)  # the last page of the path goes first
        assert pool.find([1, 2, 3, 4]) == first[:1]

    def test_a_second_page_of_the_same_tokens_is_not_found(self) -> None:
        pool = PagePool(4, 2)
        one, other = pool.take(2), pool.take(2)
        pool.remember([1, 2, 3, 4], one)
        pool.remember([1, 2, 5, 6], other)
        assert pool.find([1, 2, 5, 6]) == one[:1]
        pool.give_back(one)
        pool.give_back(other)
        assert pool.room == 4
        assert sorted(pool.take(4)) == [1, 2, 3, 4]
