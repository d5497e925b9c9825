"""Weights on their way to another process: what arrives is what was sent, or it is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from toolwright.engines import delivery
from toolwright.engines.delivery import WeightDelivery, bit_sum, checksum, compare, named_weights, received
from toolwright.failures import InfrastructureFailure
from toolwright.models import huggingface, lora

KINDS = [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", tiny.SHAPES)
def test_delivered_weights_are_those_that_were_sent(kind: str, dtype: torch.dtype) -> None:
    weights = named_weights(tiny.decoder(**tiny.SHAPES[kind]), dtype)
    with WeightDelivery(weights) as parcel:
        found = received(parcel.note)
        assert found.keys() == weights.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
        assert checksum(found) == checksum(weights)


@pytest.mark.parametrize("adapts", [False, True])
@pytest.mark.parametrize("kind", ["GPT2", "Gemma2", "Mixtral"])
def test_weights_of_another_architecture_keep_the_names_of_its_files(
    kind: str, adapts: bool, tmp_path: Path
) -> None:
    """What a process is sent is what a folder would hold: tied once, experts apart, an adapter added."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    more = {"num_key_value_heads": 4, "intermediate_size": 48}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "base")
    decoder = huggingface.load(tmp_path / "base", context=32)
    assert not decoder.fast
    if adapts:
        lora.attach(decoder, lora.Adapter(2, 4.0, 2.0), lora.matched(decoder, "all-linear"), seed=0)
        with torch.no_grad():
            for tensor in lora.learned(decoder).values():
                tensor.add_(0.1)
    huggingface.save(decoder, tmp_path / "saved")
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    sent = named_weights(decoder, torch.float32)
    assert sent.keys() == saved.keys()
    assert all(torch.equal(sent[name], tensor) for name, tensor in saved.items())


@given(place=st.integers(0, 63), other=st.integers(0, 63), bit=st.integers(0, 15))
def test_a_changed_bit_and_two_swapped_numbers_are_noticed(place: int, other: int, bit: int) -> None:
    for dtype in KINDS:
        sent = torch.randn(64, generator=torch.Generator().manual_seed(place)).to(dtype)
        changed, swapped = sent.clone(), sent.clone()
        changed.view(torch.int16)[place] ^= 1 << bit if bit < 15 else -(1 << 15)
        swapped[place], swapped[other] = sent[other], sent[place]
        assert checksum({"a": changed}) != checksum({"a": sent})
        assert (checksum({"a": swapped}) == checksum({"a": sent})) == torch.equal(swapped, sent)


def test_tensors_laid_end_to_end_have_the_sum_of_theirs() -> None:
    parts = [torch.randn(size, 5) for size in (3, 1, 7)]
    assert bit_sum(torch.cat(parts)) == sum(map(bit_sum, parts))


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"checksum": "12", "differing": []}, "version 3 arrived damaged in worker 1 of it"),
        (
            {"checksum": "11", "differing": ["lm_head.weight"]},
            "still computes with other values: lm_head.weight",
        ),
    ],
)
def test_every_worker_must_have_them(answer: dict[str, object], told: str) -> None:
    right = {"checksum": "11", "differing": []}
    compare("it", 3, sent=11, answers=[right, right])
    with pytest.raises(InfrastructureFailure, match=told):
        compare("it", 3, sent=11, answers=[right, answer])


def test_a_failed_delivery_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SHARED_MEMORY", tmp_path)
    shared = torch.zeros(4)
    with pytest.raises(RuntimeError, match="share memory"):
        WeightDelivery({"a": shared, "b": shared})
    assert not list(tmp_path.iterdir())
