"""Matrices that are kept in less than float32: read, multiplied with, adapted and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.learner.forward import statistics
from toolwright.learner.objective import Objective
from toolwright.learner.policy import Policy
from toolwright.models import huggingface, lora
from toolwright.models.decoder import Decoder
from toolwright.models.precision import autocast, loosen
from toolwright.models.quantised import QuantisedMatrix
from toolwright.trainer import building

BF16, CPU = torch.bfloat16, torch.device("cpu")
SIZE: dict[str, Any] = {"width": 64, "head_dim": 16, "kv_heads": 2, "ffn": 96, "tied": False}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As the hub has them: every number is one that bfloat16 can tell."""
    decoder = tiny.decoder(**SIZE, qkv_bias=True, family="qwen2")
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.copy_(parameter.to(BF16).float())
    huggingface.save(decoder, tmp_path / "model")
    tiny.characters().save(tmp_path / "model")
    return tmp_path / "model"


def said(decoder: Decoder) -> Tensor:
    with torch.no_grad(), autocast(CPU, BF16):
        return statistics(decoder, tiny.batch(6), temperature=1.0).log_prob


def adapted(decoder: Decoder) -> Decoder:
    lora.attach(decoder, lora.Adapter(4, 8.0, 2.0), lora.matched(decoder, "all-linear"), seed=0)
    for _, low in lora.parts(decoder):
        for b in low.b:
            b.data.normal_(0, 0.02, generator=torch.Generator().manual_seed(1))
    return decoder


def test_weights_stored_in_bfloat16_give_the_logits_of_float32(folder: Path) -> None:
    plain, half = huggingface.load(folder), huggingface.load(folder, stored="bfloat16", device=CPU)
    kinds = (
        {p.dtype for p in half.parameters() if p.dim() == 2},
        {p.dtype for p in half.parameters() if p.dim() < 2},
    )
    assert kinds == ({BF16}, {torch.float32})
    assert torch.equal(said(half), said(plain))


def test_in_eight_bits_it_says_about_the_same(folder: Path) -> None:
    plain, eight = huggingface.load(folder), huggingface.load(folder, stored="int8", device=CPU)
    for layer, other in zip(plain.layers, eight.layers, strict=True):
        for name in ("qkv", "out", "gate_up", "down"):
            wanted, found = getattr(layer, name).weight.detach(), getattr(other, name)
            assert isinstance(found, QuantisedMatrix)
            assert float((found.weight.float() - wanted).norm() / wanted.norm()) < 0.01
    assert float((said(eight) - said(plain)).abs().mean()) < 0.1
    size = sum(t.numel() * t.element_size() for name, t in eight.state_dict().items() if "layers" in name)
    assert size < 0.3 * sum(t.numel() * 4 for name, t in plain.state_dict().items() if "layers" in name)


def test_an_adapter_on_a_base_in_bfloat16_is_the_one_on_a_loosened_base(folder: Path) -> None:
    """To the last bit, in the sum, in what is said, and in the gradient."""
    plain, half = (adapted(huggingface.load(folder, stored=kind)) for kind in ("float32", "bfloat16"))  # type: ignore[arg-type]
    loosen(plain, BF16)
    loosen(half, BF16)
    for mine, theirs in zip(half.weights().layers, plain.weights().layers, strict=True):
        assert torch.equal(mine.qkv, theirs.qkv)  # type: ignore[arg-type]
        assert torch.equal(mine.down, theirs.down)  # type: ignore[arg-type]
    assert torch.equal(said(half), said(plain))
    found = []
    for decoder in (plain, half):
        with autocast(CPU, BF16):
            log_prob = statistics(decoder, tiny.batch(6), temperature=1.0).log_prob
        log_prob.sum().backward()
        found.append({name: p.grad for name, p in decoder.named_parameters() if p.requires_grad})
    assert found[0].keys() == found[1].keys()
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_an_adapter_learns_on_such_a_base(folder: Path, stored: Any) -> None:
    decoder = huggingface.load(folder, stored=stored)
    lora.attach(decoder, lora.Adapter(4, 8.0, 2.0), lora.matched(decoder, "all-linear"), seed=0)
    base = {name: t.clone() for name, t in decoder.state_dict().items() if "adapters" not in name}
    policy = Policy(
        decoder,
        schema.OptimizerConfig(lr=5e-3),
        total_updates=9,
        temperature=1.0,
        micro_tokens=900,
        dtype=BF16,
    )
    batch = tiny.batch(8)
    batch.columns["advantages"] = torch.ones(len(batch.actions))
    before = policy.statistics(batch)["log_prob"].mean()
    for _ in range(10):
        policy.update(batch, Objective(schema.Algorithm(loss="reinforce"), norm_tokens=16))
    assert float(policy.statistics(batch)["log_prob"].mean() - before) > 0.3
    assert all(torch.equal(tensor, decoder.state_dict()[name]) for name, tensor in base.items())


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_with_its_adapter_it_is_written_whole(folder: Path, stored: Any, tmp_path: Path) -> None:
    decoder = adapted(huggingface.load(folder, stored=stored))
    huggingface.save(decoder, tmp_path / "whole")
    again = huggingface.load(tmp_path / "whole")
    assert float((said(again) - said(decoder)).abs().max()) < 1e-2


def test_what_was_learned_in_bfloat16_is_written_and_read_as_it_is(folder: Path, tmp_path: Path) -> None:
    half = huggingface.load(folder, stored="bfloat16")
    huggingface.save(half, tmp_path / "again")
    again = huggingface.load(tmp_path / "again", stored="bfloat16")
    mine, theirs = half.state_dict(), again.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert huggingface.read_config(tmp_path / "again")["torch_dtype"] == "bfloat16"


def built(folder: Path, **model: Any) -> Decoder:
    return building.build_model(schema.Model(path=str(folder), device="cpu", **model), "", seed=0)[0]


def test_a_model_is_built_as_it_is_configured(folder: Path) -> None:
    assert built(folder, dtype="bfloat16_weights").embedding.weight.dtype == BF16
    quantised = built(folder, dtype="int8_weights", lora=schema.LoRA(rank=2))
    assert isinstance(quantised.get_submodule("layers.0.qkv"), QuantisedMatrix)
    assert {p.dtype for p in quantised.parameters() if p.requires_grad} == {torch.float32}
    assert built(folder, gradient_checkpointing="ffn").recompute == "ffn"
    assert built(folder).recompute is False


def test_eight_bits_without_an_adapter_are_refused(folder: Path) -> None:
    with pytest.raises(UserError, match=r"int8_weights is for the base of an adapter: set model\.lora\.rank"):
        built(folder, dtype="int8_weights")
    with pytest.raises(UserError, match="runs by its own forward, whose weights are float32"):
        built(folder, dtype="bfloat16_weights", fast="no")
