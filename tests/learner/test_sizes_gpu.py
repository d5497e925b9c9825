"""What is kept in less, on a CUDA device: kernels agree with plain torch, the engine reads new weights."""

from __future__ import annotations

import asyncio
import copy
import gc
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.engines import Sampling
from toolwright.engines.native import build
from toolwright.learner.forward import learn, statistics
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import lora
from toolwright.models.decoder import Decoder, Layer
from toolwright.models.precision import autocast, loosen
from toolwright.models.quantised import QuantisedMatrix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
BF16 = torch.bfloat16
SIZE: dict[str, Any] = {
    "width": 128,
    "head_dim": 32,
    "kv_heads": 2,
    "ffn": 192,
    "context": 256,
    "tied": False,
}


def decoder(stored: Any = "float32") -> Decoder:
    """The same numbers, all of which bfloat16 can tell, in any way to store them."""
    plain = tiny.decoder(**SIZE)
    made = Decoder(plain.shape, stored=stored)
    with torch.no_grad():
        for weight in {plain.embedding.weight, plain.unembedding.weight}:
            weight.mul_(0.2)
        for name, weight in plain.state_dict().items():
            path, _, last = name.rpartition(".")
            module = made.get_submodule(path)
            if isinstance(module, QuantisedMatrix) and last == "weight":
                module.load(weight.to(BF16))
            else:
                getattr(module, last).copy_(weight.to(BF16))
    return made.cuda()


def adapted(made: Decoder) -> Decoder:
    lora.attach(made, lora.Adapter(4, 8.0, 2.0), lora.matched(made, "all-linear"), seed=0)
    for _, low in lora.parts(made):
        for b in low.b:
            b.data.copy_(torch.randn(b.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    return made


def said(made: Decoder) -> Tensor:
    with torch.no_grad(), autocast(made.device, BF16):
        return statistics(made, tiny.batch(8), temperature=1.0).log_prob.cpu()


def policy_of(made: Decoder, *, packs: bool, lr: float = 1e-3) -> Policy:
    return Policy(
        made,
        schema.OptimizerConfig(lr=lr),
        total_updates=100,
        temperature=1.0,
        micro_tokens=400,
        dtype=BF16,
        packs=packs,
    )


def learned(policy: Policy, updates: int) -> float:
    """By how much actions became likelier."""
    batch = tiny.batch(16)
    batch.columns["advantages"] = torch.ones(len(batch.actions))
    before = policy.statistics(batch)["log_prob"].mean()
    for _ in range(updates):
        found = policy.update(batch, Objective(schema.Algorithm(loss="reinforce"), norm_tokens=16))
        assert not found["skipped"]
    return float(policy.statistics(batch)["log_prob"].mean() - before)


def gradients(made: Decoder, what: Any) -> tuple[dict[str, Tensor], int]:
    batch = tiny.batch(16)
    made.recomputing(what).zero_grad()
    torch.cuda.reset_peak_memory_stats()
    learn(made, batch, lambda _, now: now.log_prob.sum(), temperature=1.0, dtype=BF16)
    found = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
    return found, torch.cuda.max_memory_allocated()


def test_every_way_to_keep_moments_learns_alike() -> None:
    gained = {
        "float32": learned(policy_of(decoder(), packs=False), 20),
        "8 bit": learned(policy_of(decoder(), packs=True), 20),
        "bfloat16 weights": learned(policy_of(decoder("bfloat16"), packs=True), 20),
    }
    assert gained["float32"] > 0.1
    assert gained["8 bit"] == pytest.approx(gained["float32"], rel=0.1)
    assert gained["bfloat16 weights"] == pytest.approx(gained["float32"], rel=0.2)


def test_a_run_goes_on_from_its_checkpoint() -> None:
    unbroken = policy_of(decoder("bfloat16"), packs=True)
    learned(unbroken, 2)
    resumed = policy_of(decoder("bfloat16"), packs=True)
    resumed.load_state_dict(copy.deepcopy(unbroken.state_dict()))
    codes = [p.optimizer.state_dict()["adamw"]["state"] for p in (unbroken, resumed)]
    for name, state in codes[0].items():
        assert all(torch.equal(value, codes[1][name][key]) for key, value in state.items()), name


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_gradients_of_what_is_computed_again(stored: str) -> None:
    made = decoder(stored)
    wanted, _ = gradients(made, False)
    for what in ("ffn", True):
        found, _ = gradients(made, what)
        for name, gradient in wanted.items():
            difference = float((found[name].float() - gradient.float()).norm() / gradient.float().norm())
            assert difference < 1e-2, (name, what)


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_an_adapter_says_what_it_says_on_a_loosened_base(stored: str) -> None:
    low, plain = adapted(decoder(stored)), decoder()
    if stored == "int8":  # the same numbers in float32
        with torch.no_grad():
            for mine, theirs in zip(plain.layers, low.layers, strict=True):
                for name in ("qkv", "out", "gate_up", "down"):
                    getattr(mine, name).weight.copy_(getattr(theirs, name).weight)
    adapted(plain)
    loosen(plain, BF16)
    for mine, theirs in zip(low.layers, plain.layers, strict=True):
        assert isinstance(mine, Layer)
        assert isinstance(theirs, Layer)
        for name in ("qkv", "out", "gate_up", "down"):
            same = mine._matrix(name).to(BF16) == theirs._matrix(name).to(BF16)
            assert float(same.float().mean()) > 0.999, name
    torch.testing.assert_close(said(low), said(plain), rtol=0, atol=0.05)
    wanted, _ = gradients(plain, False)
    found, _ = gradients(low, False)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        assert float((found[name] - gradient).norm() / gradient.norm()) < 3e-2, name


def sampled(engine: Any, count: int = 6) -> list[list[float]]:
    async def one(number: int) -> list[float]:
        answer = await engine.generate(
            [3 + number, 5, 7], Sampling(max_tokens=8, seed=number), attempt=str(number)
        )
        engine.release(str(number))
        return [*map(float, answer.tokens), *answer.log_probs]

    async def every() -> list[list[float]]:
        return await asyncio.gather(*map(one, range(count)))

    return asyncio.run(every())


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_the_engine_reads_new_weights_after_a_publication(stored: str) -> None:
    """Those of a learner in bfloat16 are its own tensors; sums with an adapter are made again in place."""
    made = decoder(stored) if stored == "bfloat16" else adapted(decoder(stored))
    policy = policy_of(made, packs=True, lr=1e-2)
    engine = build(
        schema.EngineConfig(slots=8, timeout_s=60),
        decoder=made,
        tokenizer=tiny.characters(ends=False),
        dtype=BF16,
    )
    before = sampled(engine)
    weights = engine._laid_out()  # type: ignore[attr-defined]
    if stored == "bfloat16":
        assert weights.embedding.data_ptr() == made.embedding.weight.data_ptr()
        assert weights.layers[0].qkv.data_ptr() == made.get_parameter("layers.0.qkv.weight").data_ptr()
    learned(policy, 5)
    engine.publish(1)
    after = sampled(engine)
    assert after != before
    fresh = build(
        schema.EngineConfig(slots=8, timeout_s=60),
        decoder=made,
        tokenizer=tiny.characters(ends=False),
        dtype=BF16,
    )
    assert sampled(fresh) == after


def taken(made: Decoder, what: Any, batch: Batch) -> int:
    """The most bytes that a pass forward and back has beside what was there before it: weights, and whatever
    earlier tests of this process have left on the device."""
    made.recomputing(what).zero_grad()
    gc.collect()  # else what they left may go during the pass, and count as room that it did not need
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    learn(made, batch, lambda _, now: now.log_prob.sum(), temperature=1.0, dtype=BF16)
    return torch.cuda.max_memory_allocated() - before


def test_less_is_kept_on_the_device() -> None:
    """A model that is deep enough to tell, with 8,016 tokens.

    Counted by hand, in megabytes: a layer keeps 3,456 numbers a token of its attention (before and after the
    norm, heads before and after their turn, what was attended to, the sum: 55 MB) and 6,656 of its
    feed-forward half (after the norm, gate and up, their product: 107 MB), and its matrices in bfloat16 (8).
    The way back through a layer adds about 110, and 170 where it computes the half again; with all of the
    layer computed again, gradients of all weights (123) stand beside that. So the most is 1,490 of everything
    kept, 740 without feed-forward halves, and 410 without layers: 0.50 and 0.55 of the one before.
    """
    shape = tiny.shape(
        vocab=512, layers=8, width=512, heads=8, kv_heads=2, head_dim=64, ffn=2048, context=8192
    )
    made = Decoder(shape).initialise(0).cuda()
    attempt = tiny.trajectory([("prompt", [1] * 16), ("policy", [i % 500 for i in range(8000)])])
    batch, ways = Batch.pack([attempt]), (False, "ffn", True)
    taken(made, False, batch)  # the libraries take their workspaces, and keep them
    everything, without_ffn, without_layers = (taken(made, what, batch) for what in ways)
    assert without_ffn < 0.7 * everything
    assert without_layers < 0.8 * without_ffn
