"""The same promises on a CUDA device: everything meets there, and engine and learner still agree."""

from __future__ import annotations

import asyncio

import pytest
import tiny
import torch

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.learning import KL
from toolwright.engines import Sampling
from toolwright.engines.native import NativeEngine, build
from toolwright.learner.critic import Critic
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Frozen, Policy
from toolwright.trajectory import Segment, Task, Trajectory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
PRECISIONS = pytest.mark.parametrize(
    ("dtype", "gap"), [(torch.float32, 1e-3), (torch.bfloat16, 0.5)], ids=["float32", "bfloat16"]
)


def policy_of(dtype: torch.dtype) -> Policy:
    return Policy(
        tiny.decoder(kv_heads=2, context=128).cuda(),
        schema.Optimizer(lr=0.01),
        total_updates=10,
        temperature=1.0,
        micro_tokens=200,
        dtype=dtype,
    )


def sample(engine: NativeEngine, count: int) -> Batch:
    """Attempts of two turns with a tool's answer between them."""
    tokenizer = tiny.characters()

    async def attempt(number: int) -> Trajectory:
        made = Trajectory(Task(str(number), []), group=str(number // 2), index=number)
        made.append(Segment("prompt", tokenizer.encode("<|user|>12+3="[: 8 + number % 6])))
        for _ in range(2):
            sampling = Sampling(max_tokens=3 + number % 9, seed=number)
            answer = await engine.generate(made.tokens, sampling, attempt=str(number))
            made.append(Segment("policy", answer.tokens, answer.log_probs))
            made.append(Segment("tool", tokenizer.encode("7 " * (number % 3))))
        engine.release(str(number))
        return made

    async def all_of_them() -> list[Trajectory]:
        return await asyncio.gather(*(attempt(i) for i in range(count)))

    return Batch.pack(asyncio.run(all_of_them()))


@PRECISIONS
def test_what_the_engine_recorded_is_about_what_the_learner_finds(dtype: torch.dtype, gap: float) -> None:
    policy = policy_of(dtype)
    engine = build(
        schema.Engine(slots=8, timeout_s=60),
        decoder=policy.decoder,
        tokenizer=tiny.characters(),
        dtype=dtype,
    )
    objective = Objective(schema.Algorithm(), norm_tokens=16)
    for step in range(3):
        batch = sample(engine, 20)
        found = policy.statistics(batch)["log_prob"]
        assert float((found - batch.columns["sampled_log_prob"]).abs().max()) < gap
        batch.columns["advantages"] = torch.randn(len(batch.actions))
        assert not policy.update(batch, objective)["skipped"]
        engine.publish(step + 1)


@PRECISIONS
def test_policy_reference_and_critic_learn_there(dtype: torch.dtype, gap: float) -> None:
    policy, batch = policy_of(dtype), tiny.batch(8)
    reference = Frozen.copy_of(policy)
    critic = Critic(
        policy.decoder,
        schema.Optimizer(lr=0.01),
        total_updates=20,
        micro_tokens=200,
        clip=10.0,
        dtype=dtype,
    )
    batch.columns["old_log_prob"] = policy.statistics(batch, squares=True)["log_prob"]
    batch.columns["ref_log_prob"] = reference.statistics(batch)["log_prob"]
    batch.columns["values"] = critic.values(batch)
    assert {column.device.type for column in batch.columns.values()} == {"cpu"}
    for loss in ("ppo", "clip_cov", "kl_cov"):
        algorithm = schema.Algorithm(loss=loss, entropy_coef=0.01, kl=KL(where="loss", coef=0.1))
        assert not policy.update(batch, Objective(algorithm, norm_tokens=16))["skipped"]
    losses = [critic.update(batch)["loss"] for _ in range(20)]
    assert losses[-1] < losses[0]
    assert torch.equal(reference.statistics(batch)["log_prob"], batch.columns["ref_log_prob"])
