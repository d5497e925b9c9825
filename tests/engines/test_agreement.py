"""What the engine recorded while sampling is what the learner finds for the same tokens."""

from __future__ import annotations

import asyncio

import pytest
import tiny
import torch

from toolwright.agents.attempt import Attempt
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Engine, Sampling
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.trajectory import Task, Trajectory

from .conftest import make

TOKENIZER = tiny.characters()


async def explore(engine: Engine, number: int, temperature: float) -> Trajectory:
    """An attempt of up to four turns; tools and environment answer with very different lengths."""
    trajectory = Trajectory(Task(str(number), []), group=str(number // 2), index=number)
    sampling = Sampling(temperature=temperature, max_tokens=3 + number % 9, seed=number)
    attempt = Attempt(trajectory, engine, TOKENIZER, sampling, max_turns=4)
    attempt.prompt([{"role": "user", "content": "12+3="[: 1 + number % 5]}])
    for turn in range(1 + number % 4):
        await attempt.act()
        attempt.observe("7 " * (number % 3 + turn), source="tool" if turn % 2 else "environment")
        for _ in range(number % 3):
            await asyncio.sleep(0)  # others go on meanwhile
    if trajectory.segments[-1].source != "policy":
        await attempt.act()
    engine.release(attempt.id)
    return trajectory


def sample(engine: Engine, *, temperature: float, count: int = 12) -> Batch:
    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(explore(engine, i, temperature) for i in range(count)))

    return Batch.pack(asyncio.run(all_of_them()))


def gap(policy: Policy, batch: Batch) -> float:
    difference = policy.statistics(batch)["log_prob"] - batch.columns["sampled_log_prob"]
    return float(difference.abs().max())


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize(("slots", "temperature"), [(2, 1.0), (64, 0.7)])
def test_engine_and_learner_agree_while_training_at_a_high_rate(
    kind: str, slots: int, temperature: float
) -> None:
    model = tiny.decoder(**{**tiny.SHAPES[kind], "context": 128})
    engine = make("native", model, TOKENIZER, slots=slots)
    policy = Policy(
        model,
        schema.OptimizerConfig(lr=0.03, max_grad_norm=10.0),
        total_updates=10,
        temperature=temperature,
        micro_tokens=200,  # several micro-batches, so that packing is part of what is tested
        dtype=torch.float32,
    )
    objective = Objective(schema.Algorithm(), norm_tokens=16)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for step in range(4):
        batch = sample(engine, temperature=temperature)
        assert len(batch.split(policy.budget.tokens)) > 1
        assert max(int(s) for s in batch.steps) > 1, "several turns"
        assert gap(policy, batch) <= 1e-5, f"step {step}"
        generator = torch.Generator().manual_seed(step)
        batch.columns["advantages"] = torch.randn(len(batch.actions), generator=generator)
        metrics = policy.update(batch, objective)
        assert metrics["gap/abs_max"] <= 1e-5
        assert not metrics["skipped"]
        engine.publish(step + 1)
    moved = [float((a - b).detach().abs().max()) for a, b in zip(before, model.parameters(), strict=True)]
    assert max(moved) > 0.05, "the weights have really changed"


@pytest.mark.parametrize("heads", [{"heads": 4, "kv_heads": 4}, {"heads": 6, "kv_heads": 2, "head_dim": 16}])
def test_long_prompts_and_short_ones_side_by_side_agree(heads: dict[str, int]) -> None:
    """Across the lengths at which products are cut, and at which the learner changes its way."""
    model = tiny.decoder(**heads, context=900)
    engine = make("native", model, TOKENIZER, slots=8)

    async def answer(length: int) -> Trajectory:
        trajectory = Trajectory(Task(str(length), []), group=str(length))
        sampling = Sampling(max_tokens=12, seed=length)
        attempt = Attempt(trajectory, engine, TOKENIZER, sampling, max_turns=1)
        attempt.prompt([{"role": "user", "content": "123+4=5 "[: 1 + length % 8] * length}])
        await attempt.act()
        return trajectory

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*map(answer, (1, 14, 31, 49, 63, 65, 126, 99)))

    answers = asyncio.run(all_of_them())
    policy = Policy(
        model,
        schema.OptimizerConfig(),
        total_updates=1,
        temperature=1.0,
        micro_tokens=2000,
        dtype=torch.float32,
    )
    assert gap(policy, Batch.pack(answers)) <= 1e-6
    assert max(gap(policy, Batch.pack([one])) for one in answers) <= 1e-6, "each by itself"


def test_a_stale_cache_would_be_noticed() -> None:
    """The test above can fail: without publishing, a conversation goes on with the old weights' keys."""
    model = tiny.decoder(context=128)
    engine = make("native", model, TOKENIZER)
    policy = Policy(
        model,
        schema.OptimizerConfig(),
        total_updates=1,
        temperature=1.0,
        micro_tokens=1000,
        dtype=torch.float32,
    )

    async def across() -> Trajectory:
        trajectory = Trajectory(Task("t", []), group="g")
        attempt = Attempt(trajectory, engine, TOKENIZER, Sampling(max_tokens=8, seed=1), max_turns=2)
        attempt.prompt([{"role": "user", "content": "12+3="}])
        await attempt.act()
        with torch.no_grad():
            model.get_parameter("layers.0.qkv.weight").mul_(1.5)
        attempt.observe("7")
        await attempt.act()
        return trajectory

    assert gap(policy, Batch.pack([asyncio.run(across())])) > 1e-3
