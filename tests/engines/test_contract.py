"""What every engine promises, whatever it is made of."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
import tiny
import torch

from toolwright.engines import Completion, Engine, Sampling
from toolwright.failures import InfrastructureFailure, TaskFailure
from toolwright.models.decoder import Decoder

from .conftest import MODELS, SERVED, Build, Promised, Request, ask, ask_one

MODEL = MODELS[SERVED]
TOKENIZER = tiny.characters()
ENDLESS = tiny.characters(ends=False)
PROMPT = TOKENIZER.encode("<|user|>12+34=<|end|><|assistant|>")


def prompts(count: int, *, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(MODEL.shape.vocab) for _ in range(rng.randint(1, 30))] for _ in range(count)]


def expected(model: Decoder, tokens: list[int], start: int, temperature: float = 1.0) -> list[float]:
    """The log-probability of every token from `start` on, by one pass over the whole sequence."""
    log_probs = (tiny.logits(model, tokens) / temperature).log_softmax(-1)
    return [float(log_probs[place - 1, tokens[place]]) for place in range(start, len(tokens))]


class TestWhatIsSaid:
    @pytest.mark.parametrize("kind", MODELS)
    def test_greedy_is_the_likeliest_token_of_a_whole_pass(self, build: Build, kind: str) -> None:
        model = MODELS[kind]
        sampling = Sampling(temperature=0, max_tokens=20)
        answers = ask(build(model, ENDLESS), [(p, sampling, str(i)) for i, p in enumerate(prompts(5))])
        for prompt, answer in zip(prompts(5), answers, strict=True):
            logits = tiny.logits(model, [*prompt, *answer.tokens])
            assert answer.tokens == logits[len(prompt) - 1 : -1].argmax(-1).tolist()

    def test_at_temperature_zero_the_seed_changes_nothing(self, build: Build) -> None:
        engine = build(MODEL, TOKENIZER)
        said = [ask_one(engine, PROMPT, Sampling(temperature=0, seed=seed)) for seed in range(3)]
        assert said[0] == said[1] == said[2]

    @pytest.mark.parametrize("kind", MODELS)
    @pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}])
    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    def test_each_token_has_its_probability_in_the_whole_distribution(
        self, build: Build, promised: Promised, kind: str, filters: dict[str, Any], temperature: float
    ) -> None:
        model = MODELS[kind]
        sampling = Sampling(temperature=temperature, max_tokens=20, seed=3, **filters)
        for prompt in prompts(2):
            answer = ask_one(build(model, ENDLESS), prompt, sampling)
            wanted = expected(model, [*prompt, *answer.tokens], len(prompt), temperature)
            assert answer.log_probs == pytest.approx(wanted, abs=promised.near)

    def test_text_is_what_the_tokens_say(self, build: Build) -> None:
        answer = ask_one(build(MODEL, ENDLESS), PROMPT, Sampling(max_tokens=30))
        assert answer.text == TOKENIZER.decode(answer.tokens)

    def test_the_version_of_the_weights_is_reported(self, build: Build) -> None:
        engine = build(MODEL, TOKENIZER)
        assert ask_one(engine, PROMPT, Sampling()).weights_version == 0
        engine.publish(7)
        assert ask_one(engine, PROMPT, Sampling()).weights_version == 7


class TestSeeds:
    """A seed decides what is sampled; company, room and order of arrival do not."""

    REQUESTS: tuple[Request, ...] = tuple(
        (prompt, Sampling(max_tokens=5 + 3 * (i % 4), seed=100 + i, temperature=0.5 + 0.25 * (i % 3)), str(i))
        for i, prompt in enumerate([*prompts(8), PROMPT, PROMPT, PROMPT])
    )

    @pytest.fixture(scope="class")
    def alone(self) -> dict[tuple[str, str], Completion]:
        """Each by itself, in an engine of its own; by engine and name."""
        return {}

    @pytest.mark.parametrize("slots", [1, 3, 64])
    @pytest.mark.parametrize("order", ["as they are", "backwards", "shuffled"])
    def test_company_changes_nothing(
        self,
        build: Build,
        engine_name: str,
        promised: Promised,
        alone: dict[tuple[str, str], Completion],
        slots: int,
        order: str,
    ) -> None:
        for prompt, sampling, name in self.REQUESTS:
            if (engine_name, name) not in alone:
                alone[engine_name, name] = ask_one(build(MODEL, TOKENIZER, slots=1), prompt, sampling)
        requests = list(self.REQUESTS)
        if order == "backwards":
            requests.reverse()
        elif order == "shuffled":
            random.Random(slots).shuffle(requests)
        answers = ask(build(MODEL, TOKENIZER, slots=slots), requests)
        for (_, _, name), answer in zip(requests, answers, strict=True):
            own = alone[engine_name, name]
            assert answer.tokens == own.tokens
            assert answer.log_probs == pytest.approx(own.log_probs, abs=promised.steady)
            assert answer.stop == own.stop

    def test_arriving_late_changes_nothing(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS, slots=3)
        long = Sampling(max_tokens=30, seed=5)
        late = Sampling(max_tokens=6, seed=6)

        async def joined() -> list[Completion]:
            first = asyncio.create_task(engine.generate(PROMPT, long, attempt="first"))
            for _ in range(7):
                await asyncio.sleep(0)
            second = await engine.generate(PROMPT, late, attempt="second")
            return [await first, second]

        together = asyncio.run(joined())
        fresh = build(MODEL, ENDLESS)
        assert [t.tokens for t in together] == [
            ask_one(fresh, PROMPT, long).tokens,
            ask_one(fresh, PROMPT, late).tokens,
        ]

    def test_a_neighbour_with_filters_changes_nothing(self, build: Build) -> None:
        plain = Sampling(max_tokens=10, seed=1)
        odd = [replace(plain, seed=2, top_k=2), replace(plain, seed=3, top_p=0.3, temperature=0)]
        requests = [(PROMPT, sampling, str(i)) for i, sampling in enumerate([odd[0], plain, odd[1]])]
        together = ask(build(MODEL, ENDLESS), requests)
        assert together[1].tokens == ask_one(build(MODEL, ENDLESS), PROMPT, plain).tokens

    def test_another_seed_says_something_else(self, build: Build) -> None:
        requests = [(PROMPT, Sampling(max_tokens=12, seed=seed), str(seed)) for seed in range(8)]
        assert len({tuple(answer.tokens) for answer in ask(build(MODEL, ENDLESS), requests)}) == 8

    def test_attempts_that_share_a_prompt_say_what_each_says_alone(
        self, build: Build, promised: Promised
    ) -> None:
        samplings = [Sampling(max_tokens=12, seed=seed) for seed in range(6)]
        group = ask(build(MODEL, TOKENIZER), [(PROMPT, s, str(s.seed)) for s in samplings])
        for sampling, answer in zip(samplings, group, strict=True):
            own = ask_one(build(MODEL, TOKENIZER), PROMPT, sampling)
            assert answer.tokens == own.tokens
            assert answer.log_probs == pytest.approx(own.log_probs, abs=promised.steady)


class TestTheDistribution:
    def draw(self, build: Build, promised: Promised, **settings: Any) -> torch.Tensor:
        """How often each token came first."""
        requests = [
            (PROMPT, Sampling(max_tokens=1, seed=seed, **settings), str(seed))
            for seed in range(promised.draws)
        ]
        first = [answer.tokens[0] for answer in ask(build(MODEL, ENDLESS, slots=256), requests)]
        return torch.bincount(torch.tensor(first), minlength=MODEL.shape.vocab)

    @pytest.mark.parametrize(
        ("settings", "kept"),
        [
            ({}, None),
            ({"temperature": 2.0}, None),
            ({"temperature": 0.5}, None),
            ({"top_k": 4}, 4),
            ({"top_k": 1}, 1),
            ({"top_k": 1000}, None),
        ],
        ids=str,
    )
    def test_is_the_softmax_within_the_k_likeliest(
        self, build: Build, promised: Promised, settings: dict[str, Any], kept: int | None
    ) -> None:
        logits = tiny.logits(MODEL, PROMPT)[-1].double() / settings.get("temperature", 1.0)
        probs = logits.softmax(-1)
        if kept is not None:
            probs = torch.zeros_like(probs).scatter(0, probs.topk(kept).indices, probs.topk(kept).values)
        self.compare(self.draw(build, promised, **settings), probs / probs.sum())

    @pytest.mark.parametrize("top_p", [0.9, 0.5, 0.01])
    def test_is_the_softmax_within_the_fewest_that_reach_p(
        self, build: Build, promised: Promised, top_p: float
    ) -> None:
        probs = tiny.logits(MODEL, PROMPT)[-1].double().softmax(-1)
        order = probs.argsort(descending=True)
        count = int((probs[order].cumsum(0) < top_p).sum()) + 1
        kept = torch.zeros_like(probs).scatter(0, order[:count], probs[order[:count]])
        self.compare(self.draw(build, promised, top_p=top_p), kept / kept.sum())

    def compare(self, drawn: torch.Tensor, probs: torch.Tensor) -> None:
        """Pearson's χ², over the cells that hold enough; five deviations of it are allowed."""
        assert not drawn[probs == 0].any(), "nothing outside the set is ever drawn"
        count = int(drawn.sum())
        enough = probs * count >= 5
        wanted = torch.cat([probs[enough], probs[~enough].sum()[None]]) * count
        found = torch.cat([drawn[enough], drawn[~enough].sum()[None]])
        freedom = max(len(wanted) - 1, 1)
        statistic = float(((found - wanted).square() / wanted.clamp(min=1)).sum())
        assert statistic < freedom + 5 * (2 * freedom) ** 0.5


class TestWhenATurnEnds:
    def test_the_end_token_is_kept_in_the_tokens_and_not_in_the_text(self, build: Build) -> None:
        requests = [(PROMPT, Sampling(max_tokens=40, seed=seed), str(seed)) for seed in range(20)]
        ended = [a for a in ask(build(MODEL, TOKENIZER), requests) if a.stop == "eos"]
        assert ended
        for answer in ended:
            assert answer.tokens[-1] == TOKENIZER.end
            assert TOKENIZER.end not in answer.tokens[:-1]
            assert len(answer.log_probs) == len(answer.tokens)
            assert "<|end|>" not in answer.text

    @pytest.mark.parametrize("limit", [1, 2, 9])
    def test_at_the_limit_of_tokens(self, build: Build, limit: int) -> None:
        answer = ask_one(build(MODEL, ENDLESS), PROMPT, Sampling(max_tokens=limit))
        assert (len(answer.tokens), answer.stop) == (limit, "length")

    def test_when_the_context_is_full(self, build: Build, promised: Promised) -> None:
        engine = build(MODEL, ENDLESS)
        answer = ask_one(engine, PROMPT, Sampling(max_tokens=1000))
        assert len(PROMPT) + len(answer.tokens) == MODEL.shape.context
        assert answer.stop == "length"
        wanted = expected(MODEL, [*PROMPT, *answer.tokens], len(PROMPT))
        assert answer.log_probs == pytest.approx(wanted, abs=promised.near), "up to the last place"

    def test_a_prompt_may_leave_room_for_a_single_token(self, build: Build) -> None:
        prompt = (PROMPT * 10)[: MODEL.shape.context - 1]
        assert len(ask_one(build(MODEL, ENDLESS), prompt, Sampling(max_tokens=5)).tokens) == 1

    def test_a_prompt_that_leaves_no_room_fails_its_task_and_no_other(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS)
        with pytest.raises(TaskFailure, match="64 tokens leave no room in a context of 64"):
            ask_one(engine, [1] * 64, Sampling())
        assert ask_one(engine, PROMPT, Sampling(max_tokens=3)).tokens

    def test_a_prompt_without_tokens_is_the_callers_mistake(self, build: Build) -> None:
        with pytest.raises(ValueError, match="start with a prompt"):
            ask_one(build(MODEL, ENDLESS), [], Sampling())

    @pytest.mark.parametrize("length", [1, 2, 3])
    def test_with_the_first_stop_string_that_appears(self, build: Build, length: int) -> None:
        for seed in range(5):
            free = ask_one(build(MODEL, ENDLESS), PROMPT, Sampling(max_tokens=40, seed=seed))
            stop = free.text[7 : 7 + length]
            sampling = Sampling(max_tokens=40, seed=seed, stop=("never said", stop))
            answer = ask_one(build(MODEL, ENDLESS), PROMPT, sampling)
            assert answer.stop == "stop"
            assert answer.tokens == free.tokens[: len(answer.tokens)], "stopping changes nothing before"
            assert answer.text.endswith(stop)
            assert stop not in TOKENIZER.decode(answer.tokens[:-1]), "at once, not later"

    def test_a_stop_string_in_the_prompt_stops_nothing(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS)
        free = ask_one(engine, PROMPT, Sampling(max_tokens=5))
        only_there = tuple(c for c in "12+34=" if c not in free.text)
        assert only_there
        assert ask_one(engine, PROMPT, Sampling(max_tokens=5, stop=only_there)) == free


def converse(engine: Engine, *, turns: int, attempt: str = "talk", keep: bool = True) -> list[Completion]:
    """Several turns of one attempt with a tool's answer after each; `keep` False: nothing is kept between."""

    async def talk() -> list[Completion]:
        tokens, said = list(PROMPT), []
        for turn in range(turns):
            answer = await engine.generate(tokens, Sampling(max_tokens=6, seed=11), attempt=attempt)
            said.append(answer)
            tokens += [*answer.tokens, *TOKENIZER.encode(f"={turn * 7} ")]
            if not keep:
                engine.release(attempt)
        engine.release(attempt)
        return said

    return asyncio.run(talk())


class TestTurns:
    @pytest.mark.parametrize("kind", MODELS)
    def test_a_cache_that_was_kept_changes_nothing(self, build: Build, promised: Promised, kind: str) -> None:
        model = MODELS[kind]
        kept = converse(build(model, ENDLESS), turns=4)
        again = converse(build(model, ENDLESS), turns=4, keep=False)
        for one, other in zip(kept, again, strict=True):
            assert one.tokens == other.tokens
            assert one.log_probs == pytest.approx(other.log_probs, abs=promised.steady)

    def test_a_cache_that_was_evicted_changes_nothing(self, build: Build) -> None:
        alone = [a.tokens for a in converse(build(MODEL, ENDLESS), turns=3)]
        engine = build(MODEL, ENDLESS, slots=2)

        async def talk(name: str) -> list[list[int]]:
            tokens, said = list(PROMPT), []
            for turn in range(3):
                answer = await engine.generate(tokens, Sampling(max_tokens=6, seed=11), attempt=name)
                said.append(answer.tokens)
                tokens += [*answer.tokens, *TOKENIZER.encode(f"={turn * 7} ")]
                await asyncio.sleep(0)
            return said

        async def many() -> list[list[list[int]]]:
            return await asyncio.gather(*(talk(f"attempt {i}") for i in range(7)))

        assert asyncio.run(many()) == [alone] * 7

    def test_a_turn_may_take_back_what_was_said_before(self, build: Build) -> None:
        """An agent that shortens its history is not answered from the longer one."""
        engine = build(MODEL, ENDLESS)

        async def talk() -> Completion:
            first = await engine.generate(PROMPT, Sampling(max_tokens=8, seed=1), attempt="a")
            rewritten = [*PROMPT[:-3], *first.tokens[:2]]
            return await engine.generate(rewritten, Sampling(max_tokens=8, seed=1), attempt="a")

        answer = asyncio.run(talk())
        prompt = [*PROMPT[:-3], *ask_one(engine, PROMPT, Sampling(max_tokens=8, seed=1)).tokens[:2]]
        assert answer.tokens == ask_one(build(MODEL, ENDLESS), prompt, Sampling(max_tokens=8, seed=1)).tokens

    def test_the_same_prompt_again_is_answered_the_same(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS)

        async def twice() -> list[Completion]:
            sampling = Sampling(max_tokens=8, seed=1)
            return [await engine.generate(PROMPT, sampling, attempt="a") for _ in range(2)]

        first, second = asyncio.run(twice())
        assert first.tokens == second.tokens

    def test_two_turns_of_one_attempt_at_once_cost_nobody_a_place(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS, slots=2, timeout_s=300)
        for _ in range(3):
            requests = [(PROMPT, Sampling(max_tokens=4, seed=s), "the same") for s in range(4)]
            answers = ask(engine, requests)
            assert len({tuple(a.tokens) for a in answers}) > 1


def other_model() -> Decoder:
    return tiny.decoder(seed=1, **{"head_dim": 32, **tiny.SHAPES[SERVED]})


@torch.no_grad()
def move(model: Decoder) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))


class TestPublishing:
    def test_what_is_said_changes_with_the_weights_and_tells_their_version(self, build: Build) -> None:
        model = other_model()
        engine, sampling = build(model, ENDLESS), Sampling(temperature=0, max_tokens=12)
        before = ask_one(engine, PROMPT, sampling)
        move(model)
        engine.publish(3)
        after = ask_one(engine, PROMPT, sampling)
        assert (before.weights_version, after.weights_version) == (0, 3)
        assert before.tokens != after.tokens
        logits = tiny.logits(model, [*PROMPT, *after.tokens])
        assert after.tokens == logits[len(PROMPT) - 1 : -1].argmax(-1).tolist()

    def test_the_same_weights_again_change_nothing(self, build: Build) -> None:
        engine, sampling = build(MODEL, ENDLESS), Sampling(max_tokens=12, seed=4)
        before = ask_one(engine, PROMPT, sampling)
        engine.rest()
        engine.publish(1)
        assert ask_one(engine, PROMPT, sampling).tokens == before.tokens

    @pytest.mark.parametrize("keep", [True, False])
    def test_after_it_every_token_is_of_the_new_weights(
        self, build: Build, promised: Promised, keep: bool
    ) -> None:
        """The conversation that is under way included: nothing of it is left from the old ones."""
        model = other_model()
        engine = build(model, ENDLESS)

        async def across() -> tuple[list[int], Completion]:
            first = await engine.generate(PROMPT, Sampling(max_tokens=6, seed=1), attempt="a")
            if not keep:
                engine.release("a")
            move(model)
            engine.publish(1)
            tokens = [*PROMPT, *first.tokens]
            return tokens, await engine.generate(tokens, Sampling(max_tokens=10, seed=2), attempt="a")

        tokens, answer = asyncio.run(across())
        fresh = ask_one(build(model, ENDLESS), tokens, Sampling(max_tokens=10, seed=2))
        assert answer.tokens == fresh.tokens
        assert answer.log_probs == pytest.approx(fresh.log_probs, abs=promised.steady)
        wanted = expected(model, [*tokens, *answer.tokens], len(tokens))
        assert answer.log_probs == pytest.approx(wanted, abs=promised.near)


class TestTrouble:
    @pytest.mark.parametrize("slots", [1, 3, 8])
    def test_an_attempt_that_is_given_up_frees_its_place_and_disturbs_nobody(
        self, build: Build, slots: int
    ) -> None:
        engine = build(MODEL, ENDLESS, slots=slots, timeout_s=300)
        sampling = [Sampling(max_tokens=25, seed=seed) for seed in range(5)]

        async def one_gives_up(steps: int) -> list[Completion]:
            tasks = [
                asyncio.create_task(engine.generate(PROMPT, s, attempt=f"{steps}.{s.seed}")) for s in sampling
            ]
            for _ in range(steps):
                await asyncio.sleep(0)
            given_up = tasks[0].cancel()  # false where it has been answered already
            rest = await asyncio.gather(*tasks[1:])
            assert tasks[0].cancelled() == given_up
            return rest

        alone = [ask_one(build(MODEL, ENDLESS), PROMPT, s).tokens for s in sampling]
        for steps in (0, 1, 5, 5, 5, 5):  # more often than there are places: one that leaks is missed
            assert [a.tokens for a in asyncio.run(one_gives_up(steps))] == alone[1:]

    def test_a_turn_that_takes_too_long_says_whose_it_was(self, build: Build) -> None:
        engine = build(MODEL, ENDLESS, slots=1, timeout_s=0.02)
        requests = [(PROMPT, Sampling(max_tokens=50), "step 3, attempt 5")] + [
            (PROMPT, Sampling(max_tokens=50), f"other {i}") for i in range(40)
        ]
        with pytest.raises(
            InfrastructureFailure, match=r"did not finish a turn of .* within 0.02 s"
        ) as caught:
            ask(engine, requests)
        assert any(name in str(caught.value) for _, _, name in requests)
