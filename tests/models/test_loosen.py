"""A checkpoint stored in bfloat16 and trained in it: starts as it was stored, and small updates are seen."""

from __future__ import annotations

import tiny
import torch
from torch import Tensor

from toolwright.config import schema
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import lora
from toolwright.models.decoder import Decoder
from toolwright.models.precision import loosen

BF16 = torch.bfloat16


def stored(**changes: object) -> Decoder:
    """As a folder in bfloat16 is read."""
    decoder = tiny.decoder(**changes)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.to(BF16).float())
    return decoder


def test_every_weight_still_rounds_to_what_it_was() -> None:
    decoder = stored()
    with torch.no_grad():
        odd = [0.0, -0.0, 1.0, -1.0, 2.0**-126, -(2.0**-133), 3.3895e38, -(2.0**40), 0.00390625, float("inf")]
        decoder.embedding.weight[0, : len(odd)] = torch.tensor(odd).to(BF16).float()
    before = {name: p.detach().clone() for name, p in decoder.named_parameters()}
    loosen(decoder, BF16)
    for name, parameter in decoder.requires_grad_(False).named_parameters():
        assert torch.equal(parameter.to(BF16), before[name].to(BF16)), name
        moved = (parameter != before[name]).float().mean()
        assert moved > 0.9 if parameter.dim() >= 2 else moved == 0, name
    away = (decoder.layers[0].qkv.weight - before["layers.0.qkv.weight"]) / before[
        "layers.0.qkv.weight"
    ].abs()
    assert abs(float(away.mean())) < 1e-4  # 2**-9 at the most, either way
    assert 2**-11 < float(away.abs().mean()) < 2**-9


def test_decoders_that_need_no_loosening_stay_as_they_are() -> None:
    for decoder, dtype in ((tiny.decoder(), BF16), (stored(), torch.float32)):
        before = [p.detach().clone() for p in decoder.parameters()]
        loosen(decoder, dtype)
        assert all(map(torch.equal, before, decoder.parameters()))


def test_with_an_adapter_only_what_it_is_added_to_is_loosened_and_once() -> None:
    one, other = stored(), stored()
    for decoder in (one, other):
        lora.attach(decoder, lora.Adapter(2, 4.0, 2.0), lora.matched(decoder, ["q_proj"]), seed=0)
    before = {name: p.detach().clone() for name, p in one.named_parameters()}
    loosen(one, BF16)
    for name, parameter in one.requires_grad_(False).named_parameters():
        assert torch.equal(parameter.to(BF16), before[name].to(BF16)), name
        assert torch.equal(parameter, before[name]) != name.endswith("qkv.weight"), name
    loosen(one, BF16)
    loosen(other, BF16)
    assert all(map(torch.equal, one.parameters(), other.parameters())), "in every process to the same places"


def gained(decoder: Decoder, dtype: torch.dtype, *, stiff: bool = False) -> tuple[float, Tensor]:
    """By how much five small updates made the better actions likelier, and what the first pass said."""
    policy = Policy(
        tiny.decoder(),
        schema.OptimizerConfig(lr=1e-5),
        total_updates=100,
        temperature=1.0,
        micro_tokens=5000,
        dtype=dtype,
    )
    policy.decoder.load_state_dict(decoder.state_dict())
    if not stiff:
        loosen(policy.decoder, dtype)
    batch = tiny.batch(16)
    advantages = torch.randn(len(batch.actions), generator=torch.Generator().manual_seed(1))
    batch.columns["advantages"] = advantages
    before = policy.statistics(batch)["log_prob"]
    for _ in range(5):
        policy.update(batch, Objective(schema.Algorithm(), norm_tokens=16))
    after = policy.statistics(batch)["log_prob"]
    return float(((after - before) * advantages).mean()), before


def test_small_updates_are_seen() -> None:
    wanted, _ = gained(stored(), torch.float32)
    loose, said = gained(stored(), BF16)
    stiff, same = gained(stored(), BF16, stiff=True)
    assert torch.equal(said, same)
    assert wanted > 0
    assert 0.5 * wanted < loose < 1.5 * wanted
    assert stiff < 0.5 * wanted
