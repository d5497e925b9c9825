"""The same promises on a CUDA device: everything meets there, and engine and learner still agree."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import gc
import random
from collections.abc import Callable, Iterator

import pytest
import tiny
import torch

from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.config.learning import KL
from toolwright.engines import Sampling
from toolwright.engines.native import build
from toolwright.engines.native.engine import NativeEngine
from toolwright.failures import UserError
from toolwright.learner.critic import Critic
from toolwright.learner.forward import Statistics, learn
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models.decoder import Decoder
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
        schema.OptimizerConfig(lr=0.01),
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
def test_engine_and_learner_log_probabilities_nearly_agree(dtype: torch.dtype, gap: float) -> None:
    policy = policy_of(dtype)
    engine = build(
        schema.EngineConfig(slots=8, timeout_s=60),
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
    reference = tiny.frozen_copy(policy)
    critic = Critic(
        policy.decoder,
        schema.OptimizerConfig(lr=0.01),
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


def groups_of_attempts() -> Batch:
    """Attempts with a prompt in common, of one or two turns, and of very different lengths."""
    rng = random.Random(0)

    def some(low: int, high: int) -> list[int]:
        return [rng.randrange(20) for _ in range(rng.randint(low, high))]

    made = []
    for group in range(3):
        prompt = some(20, 60)
        for number in range(4):
            again = [("tool", some(0, 7)), ("policy", some(1, 30))] if number % 2 else []
            segments = [("prompt", prompt), ("policy", some(1, 30)), *again]
            made.append(tiny.trajectory(segments, group=str(group)))
    batch = Batch.pack(made)
    batch.columns["advantages"] = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(0))
    return batch


def undecided(kind: str) -> Decoder:
    shape = {**tiny.SHAPES[kind], "width": 128, "head_dim": 32, "ffn": 192, "context": 256}
    if kind == "experts":  # all are used: rounding changes a choice of two, and so the gradient by 0.15
        shape["experts"] = dataclasses.replace(shape["experts"], used=shape["experts"].count)
    made = tiny.decoder(**shape)
    with torch.no_grad():
        for weight in {made.embedding.weight, made.unembedding.weight}:
            weight.mul_(0.2)
    return made


def gradients(
    decoder: Decoder, batch: Batch, objective: Objective, dtype: torch.dtype, tokens: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """As `Policy.update` gathers them, part after part."""
    totals = Totals.of(batch.mask)

    def loss_of(piece: Batch, now: Statistics) -> torch.Tensor:
        return objective(piece, now, totals)[0]

    for part in batch.split(tokens, padded=False):
        learn(decoder, part, loss_of, temperature=0.8, dtype=dtype, entropy_gradient=True)
    for name, parameter in decoder.named_parameters():
        assert parameter.grad is not None
        yield name, parameter.grad.cpu()


@pytest.mark.parametrize("tokens", [10_000, 200], ids=["whole", "in_parts"])
@pytest.mark.parametrize("kind", tiny.SHAPES)
def test_a_gradient_by_kernels_is_the_plain_one(
    kind: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a whole update: prompts computed once, layers and logits fused, against float32 on a CPU. Plain
    bfloat16 differs by up to 0.028 there."""
    batch, decoder = groups_of_attempts(), undecided(kind)
    assert batch.shared_prompts() is not None
    if tokens < sum(batch.lengths):  # losses of a few sequences at a time as well
        monkeypatch.setattr("toolwright.models.kernels.likelihood.LOGITS_AT_ONCE", 40 * decoder.shape.vocab)
    objective = Objective(schema.Algorithm(entropy_coef=0.01), norm_tokens=16)
    there = copy.deepcopy(decoder).cuda()
    wanted = dict(gradients(decoder, batch, objective, torch.float32, 10_000))
    for name, found in gradients(there, batch, objective, torch.bfloat16, tokens):
        assert float((found - wanted[name]).norm() / wanted[name].norm()) < 0.05, name


def test_nothing_is_waited_for_on_the_way_forward_and_back() -> None:
    batch, decoder = groups_of_attempts(), undecided("normed").cuda()
    objective = Objective(schema.Algorithm(), norm_tokens=16)
    totals = Totals.of(batch.mask)

    def once() -> None:
        learn(
            decoder, batch, lambda piece, now: objective(piece, now, totals)[0],
            temperature=1.0, dtype=torch.bfloat16,
        )  # fmt: skip

    once()  # compiles
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        once()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def leave() -> Iterator[Callable[[int], None]]:
    """Lets this process have so many bytes more than it has."""
    total = torch.cuda.get_device_properties(0).total_memory
    filled: list[torch.Tensor] = []

    def fill_reserved() -> None:
        """Take what the allocator holds between tensors of other tests: it would be room as well."""
        torch.cuda.set_per_process_memory_fraction(torch.cuda.memory_reserved() / total)
        for size in (1 << power for power in range(32, 19, -1)):
            with contextlib.suppress(torch.OutOfMemoryError):
                while True:
                    filled.append(torch.empty(size, dtype=torch.uint8, device="cuda"))

    def limit(more: int) -> None:
        gc.collect()  # what other tests left would be collected later, and make room
        torch.cuda.empty_cache()
        fill_reserved()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + more) / total)

    yield limit
    filled.clear()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_memory_has_no_room_for_is_done_in_parts_or_refused(leave: Callable[[int], None]) -> None:
    """64 sequences leave some gigabytes behind."""
    decoder = tiny.decoder(layers=8, width=512, heads=8, kv_heads=4, head_dim=64, ffn=1536, context=512)
    tokens = [[(7 * row + place) % 20 for place in range(400)] for row in range(64)]
    batch = Batch.pack([tiny.trajectory([("prompt", t[:9]), ("policy", t[9:])]) for t in tokens])
    batch.columns["advantages"] = torch.randn(len(batch.actions))
    objective = Objective(schema.Algorithm(), norm_tokens=16)

    def fresh() -> Policy:
        return Policy(
            copy.deepcopy(decoder).cuda(), schema.OptimizerConfig(lr=1e-5), total_updates=10, temperature=1.0,
            micro_tokens=65_536, dtype=torch.bfloat16,
        )  # fmt: skip

    wanted = fresh().update(batch, objective)
    cramped = fresh()
    leave(1 << 30)
    found = cramped.update(batch, objective)
    assert 400 < cramped.budget.tokens < 65_536
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=0.01)
    leave(1 << 20)
    with pytest.raises(UserError, match=r"cuda:0 has no room .* of 400 tokens \(.* GiB are this process's"):
        cramped.update(batch, objective)
