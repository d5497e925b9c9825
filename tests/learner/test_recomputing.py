"""What is computed again on the way back: the same gradients, from less that was kept."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.learner.budget import token_bytes
from toolwright.learner.forward import states
from toolwright.models import decoder as decoders
from toolwright.models.decoder import Decoder

WAYS: list[Any] = [False, "ffn", True]


def gradients(decoder: Decoder, what: Any, *, length: int = 40) -> tuple[dict[str, Tensor], int]:
    """Of every parameter, and the bytes that were kept for them beside the parameters themselves."""
    decoder.recomputing(what).zero_grad()
    own = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = states(decoder, tiny.batch(6, longest=length)).hidden
        total = sum(kept.values())
        (hidden * torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0))).sum().backward()
    return {name: p.grad.clone() for name, p in decoder.named_parameters() if p.grad is not None}, total


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize("what", WAYS[1:])
def test_gradients_are_the_same_to_the_last_bit(kind: str, what: Any) -> None:
    decoder = tiny.decoder(**tiny.SHAPES[kind])
    wanted, _ = gradients(decoder, False)
    found, _ = gradients(decoder, what)
    assert wanted.keys() == found.keys()
    for name, gradient in wanted.items():
        assert torch.equal(found[name], gradient), name


def test_recomputed_chunks_give_the_gradients_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = tiny.decoder()
    wanted, _ = gradients(decoder, False)
    monkeypatch.setattr(decoders, "ROWS_AT_ONCE", 16)
    found, _ = gradients(decoder, "ffn")
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-6, atol=1e-6 * float(gradient.abs().max()))


def test_less_is_kept_of_each_token() -> None:
    decoder = tiny.decoder(layers=6, width=32, ffn=96, context=512)
    kept = {what: gradients(decoder, what, length=400)[1] for what in WAYS}
    assert kept["ffn"] < 0.75 * kept[False]
    assert kept[True] < 0.3 * kept["ffn"]


def test_the_memory_estimate_falls_with_recomputing() -> None:
    """Qwen2.5-1.5B with 32,768 tokens: what one sequence leaves behind."""
    shape = tiny.shape(vocab=151_936, layers=28, width=1536, heads=12, kv_heads=2, ffn=8960, head_dim=128)
    gigabytes = [32_768 * token_bytes(shape, what) / 1e9 for what in WAYS]
    assert gigabytes[0] == pytest.approx(74, abs=1)
    assert gigabytes[1] < 23
    assert gigabytes[2] < 6
