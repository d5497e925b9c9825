"""The native engine's graphs on a GPU: the same contract, many rows at once, ends found on the device."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import tiny
import torch

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Completion, SampledToken, Sampling
from toolwright.engines.native import build
from toolwright.engines.native.engine import NativeEngine
from toolwright.failures import UserError
from toolwright.learner.policy import Frozen
from toolwright.trajectory import Segment, Task, Trajectory

from .test_pages import check_pages

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BF16 = torch.bfloat16


def engine_of(
    slots: int = 16, *, ends: bool = False, params: dict[str, int] | None = None, **changes: Any
) -> Any:
    decoder = tiny.decoder(**{"context": 256, "head_dim": 16, **changes}).cuda()
    config = schema.EngineConfig(slots=slots, timeout_s=60, params=params or {})
    return build(config, decoder=decoder, tokenizer=tiny.characters(ends=ends), dtype=BF16)


def check_learners(engine: Any, prompts: list[list[int]], answers: list[Completion]) -> None:
    """Log-probabilities are those that the learner has for the same tokens."""
    mine, theirs = learned(engine, prompts, answers, 1.0)
    assert float((mine - theirs).abs().mean()) < 0.02
    assert float((mine - theirs).abs().max()) < 0.6


def long_prompt(seed: int, length: int) -> list[int]:
    return [3 + (seed * 7 + place * place) % 15 for place in range(length)]


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def many(engine: NativeEngine, prompts: list[list[int]], **settings: Any) -> list[Completion]:
    return await asyncio.gather(
        *(
            engine.generate(prompt, Sampling(seed=i, **settings), attempt=str(i))
            for i, prompt in enumerate(prompts)
        )
    )


def learned(engine: NativeEngine, prompts: list[list[int]], answers: list[Completion], heat: float) -> Any:
    """(what the engine says of its tokens, what the learner says of them)"""
    made = []
    for i, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        trajectory = Trajectory(Task(str(i), []), group=str(i), index=0)
        trajectory.append(Segment("prompt", prompt))
        trajectory.append(Segment("policy", answer.tokens, answer.log_probs))
        made.append(trajectory)
    batch = Batch.pack(made)
    frozen = Frozen(engine.decoder, temperature=heat, micro_tokens=4096, dtype=BF16)
    return batch.columns["sampled_log_prob"], frozen.statistics(batch)["log_prob"]


def prompts_of(count: int) -> list[list[int]]:
    return [[3 + (i * 7 + j * j) % 15 for j in range(1 + i % 23)] for i in range(count)]


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize("heat", [1.0, 0.6])
def test_log_probabilities_are_the_learners(kind: str, heat: float) -> None:
    engine = engine_of(slots=40, **{**tiny.SHAPES[kind], "head_dim": 16})
    prompts = prompts_of(100)  # more than there are slots
    answers = run(many(engine, prompts, max_tokens=40, temperature=heat))
    assert {len(answer.tokens) for answer in answers} == {40}
    mine, theirs = learned(engine, prompts, answers, heat)
    assert float((mine - theirs).abs().mean()) < 0.02
    assert float((mine - theirs).abs().max()) < 0.6


def test_a_group_shares_its_prompt_and_an_attempt_its_turns() -> None:
    engine = engine_of()
    prompt = prompts_of(20)[19]

    async def turns(number: int) -> tuple[list[int], list[float]]:
        tokens, said = list(prompt), []
        for turn in range(3):
            answer = await engine.generate(
                tokens, Sampling(seed=number, max_tokens=5 + number), attempt=str(number)
            )
            tokens = [*tokens, *answer.tokens]
            said += [*answer.log_probs]
            if turn < 2:
                tokens += [7, 8, 9]
                said += [0.0] * 3
        engine.release(str(number))
        return tokens, said

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(turns(i) for i in range(8)))

    for tokens, said in run(all_of_them()):
        answer = Completion(tokens[len(prompt) :], said, "", "length", 0)
        mine, theirs = learned(engine, [prompt], [answer], 1.0)
        sampled = mine != 0
        assert float((mine - theirs)[sampled].abs().max()) < 0.6
    assert sorted(engine.cache.free) == list(range(16))


def test_greedy_top_k_and_seeds() -> None:
    engine = engine_of()
    prompts = prompts_of(16)
    greedy = run(many(engine, prompts, max_tokens=20, temperature=0.0))
    narrow = run(many(engine, prompts, max_tokens=20, top_k=1))
    assert [a.tokens for a in greedy] == [a.tokens for a in narrow]
    once, again = (run(many(engine, prompts, max_tokens=20)) for _ in range(2))
    assert [a.tokens for a in once] == [a.tokens for a in again]
    nucleus = run(many(engine, prompts, max_tokens=20, top_p=0.9))
    mine, theirs = learned(engine, prompts, nucleus, 1.0)
    assert float((mine - theirs).abs().mean()) < 0.02


@pytest.mark.parametrize("heat", [1.0, 0.0])
def test_the_likeliest_tokens_are_told_beside_each(heat: float) -> None:
    engine = engine_of(slots=8)
    prompts = prompts_of(12)
    plain = run(many(engine, prompts, max_tokens=20, temperature=heat))
    assert not any(answer.top for answer in plain)
    for top in (1, 3, 500):  # 500: more than there are tokens
        told = run(many(engine, prompts, max_tokens=20, temperature=heat, top=top))
        for answer, same in zip(told, plain, strict=True):
            assert answer.tokens == same.tokens
            assert len(answer.top) == 20
            for token, log_prob, best in zip(answer.tokens, answer.log_probs, answer.top, strict=True):
                assert len(best) == min(top, engine.decoder.shape.vocab)
                assert [p for _, p in best] == sorted((p for _, p in best), reverse=True)
                if token in dict(best):
                    assert dict(best)[token] == pytest.approx(log_prob, abs=1e-4)
                else:
                    assert log_prob <= best[-1][1] + 1e-4
    heard: list[SampledToken] = []
    answer = run(
        engine.generate(prompts[0], Sampling(max_tokens=9, top=2), attempt="heard", on_token=heard.append)
    )
    assert heard == answer.sampled


def test_ends_and_stops() -> None:
    engine = engine_of(ends=True)
    prompts = prompts_of(64)
    answers = run(many(engine, prompts, max_tokens=60, temperature=1.5))
    for answer in answers:
        ended = [t in engine.tokenizer.end_tokens for t in answer.tokens]
        assert not any(ended[:-1])
        assert answer.stop == ("eos" if ended[-1] else "length")
        assert len(answer.tokens) == len(answer.log_probs) <= 60
    assert {"eos", "length"} == {answer.stop for answer in answers}
    stopped = run(many(engine, prompts, max_tokens=60, stop=("1", "+=")))
    for answer in stopped:
        assert answer.stop != "stop" or ("1" in answer.text) != ("+=" in answer.text)
        assert "1" not in answer.text[:-1]
    assert "stop" in {answer.stop for answer in stopped}


def test_a_publication_changes_what_is_sampled_and_a_cancelled_turn_frees_its_slot() -> None:
    engine = engine_of()
    prompts = prompts_of(8)
    before = run(many(engine, prompts, max_tokens=20, temperature=0.0))
    with torch.no_grad():
        for parameter in engine.decoder.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    engine.publish(1)
    after = run(many(engine, prompts, max_tokens=20, temperature=0.0))
    assert [a.tokens for a in before] != [a.tokens for a in after]
    assert {a.weights_version for a in after} == {1}

    async def cancelled() -> None:
        turn = asyncio.create_task(engine.generate(prompts[0], Sampling(max_tokens=200), attempt="x"))
        await asyncio.sleep(0.05)
        turn.cancel()
        await engine.generate(prompts[1], Sampling(max_tokens=30), attempt="y")

    run(cancelled())
    engine.release("y")
    assert sorted(engine.cache.free) == list(range(16))
    check_pages(engine.cache)


def test_more_than_there_is_memory_for_is_a_smaller_cache_or_said() -> None:
    engine = engine_of(slots=4096, context=1 << 17)
    assert (1 << 17) // 64 <= engine.cache.pool.count < 4096 * (1 << 17) // 64
    del engine
    with pytest.raises(UserError, match=r"lower model\.context"):
        engine_of(context=1 << 24, layers=16, heads=16, kv_heads=16, width=256)


class TestPages:
    @pytest.mark.parametrize("page_tokens", [64, 128])
    def test_1024_attempts_of_a_group_share_the_pages_of_their_prompt(self, page_tokens: int) -> None:
        engine = engine_of(slots=1024, context=2048, params={"page_tokens": page_tokens})
        prompt = long_prompt(1, 1000)
        answers = run(many(engine, [prompt] * 1024, max_tokens=20))
        shared = 1000 // page_tokens
        each = engine.cache.pool.pages_for(1000 + 20 + 16) - shared
        assert engine.cache.pool.peak <= shared + 1024 * each
        assert engine.cache.pool.peak_saved >= 1023 * shared
        check_learners(engine, [prompt] * 64, answers[:64])

    def test_memory_at_a_context_of_32k_follows_use(self) -> None:
        engine = engine_of(slots=512, context=32_768, params={"cache_tokens": 65_536})
        prompts = prompts_of(512)
        answers = run(many(engine, prompts, max_tokens=40))
        assert engine.cache.pool.peak <= 512 * 2
        bytes_of_a_token = 2 * 2 * 4 * 16 * 2
        assert engine.cache.keys.nbytes + engine.cache.values.nbytes == bytes_of_a_token * (65_536 + 64)
        check_learners(engine, prompts, answers)

    def test_a_full_cache_changes_no_distribution_and_loses_no_page(self) -> None:
        engine = engine_of(slots=32, context=512, params={"cache_tokens": 1024})
        prompts = [long_prompt(i, 60 + i) for i in range(40)]
        answers = run(many(engine, prompts, max_tokens=120))
        assert {len(answer.tokens) for answer in answers} == {120}
        assert 12 < engine.cache.pool.peak <= 16
        check_learners(engine, prompts, answers)
        for number in range(40):
            engine.release(str(number))
        check_pages(engine.cache)
        assert engine.cache.pool.held == 0

    def test_long_prompts_are_read_in_parts_beside_decoding(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("toolwright.engines.native.engine.PREFILL_TOKENS", 100)
        engine = engine_of(context=1024)
        prompts = [long_prompt(0, 5), *(long_prompt(i % 3, 400 + i) for i in range(9)), long_prompt(0, 900)]
        answers = run(many(engine, prompts, max_tokens=60))
        check_learners(engine, prompts, answers)
        check_pages(engine.cache)

    def test_nothing_old_is_read_after_a_publication_and_no_page_is_held(self) -> None:
        engine, fresh = engine_of(context=512), engine_of(context=512)
        prompts = [[*long_prompt(1, 200), 3 + i] for i in range(8)]

        async def published_meanwhile() -> list[Completion]:
            under_way = [
                asyncio.create_task(engine.generate(p, Sampling(max_tokens=200, seed=i), attempt=f"old {i}"))
                for i, p in enumerate(prompts[:4])
            ]
            while not engine.active:
                await asyncio.sleep(0)
            with torch.no_grad():
                for one in (engine, fresh):
                    generator = torch.Generator(device="cuda").manual_seed(7)
                    for parameter in one.decoder.parameters():
                        noise = torch.randn(parameter.shape, generator=generator, device="cuda")
                        parameter.add_(noise * 0.2)
            engine.publish(1)
            fresh.publish(1)
            new = await many(engine, prompts, max_tokens=30)
            await asyncio.gather(*under_way)
            return new

        found = run(published_meanwhile())
        check_learners(fresh, prompts, found)
        assert {answer.weights_version for answer in found} == {1}
        for number in range(8):
            engine.release(str(number))
            engine.release(f"old {number}")
        check_pages(engine.cache)
        assert engine.cache.pool.held == 0
        engine.publish(2)
        assert len(engine.cache.pool.free) == engine.cache.pool.count

    def test_attempts_of_several_turns_end_at_different_times(self) -> None:
        """Rows that ended stand still while the device goes on; their pages may be others' by then."""
        engine = engine_of(slots=24, context=512, params={"cache_tokens": 2048})
        told: list[tuple[list[int], Completion]] = []

        async def attempt(number: int) -> None:
            tokens = [*long_prompt(0, 70), *long_prompt(number // 4, 10)]
            for turn in range(3):
                sampling = Sampling(max_tokens=5 + (number * 13 + turn * 29) % 60, seed=number)
                answer = await engine.generate(tokens, sampling, attempt=str(number))
                told.append((list(tokens), answer))
                tokens = [*tokens, *answer.tokens, 7, 8, 9]
            engine.release(str(number))

        async def every() -> None:
            await asyncio.gather(*map(attempt, range(40)))

        run(every())
        check_learners(engine, [prompt for prompt, _ in told], [answer for _, answer in told])
        check_pages(engine.cache)
        assert engine.cache.pool.held == 0
