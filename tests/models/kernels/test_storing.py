"""Kernels over what is stored in less than float32: moments in eight bits, and an adapter's base."""

from __future__ import annotations

import pytest
import tiny
import torch

from toolwright.learner import eight_bit
from toolwright.models import lora
from toolwright.models.decoder import Decoder, Layer
from toolwright.models.kernels import eight_bit as kernel
from toolwright.models.kernels import merge as merging
from toolwright.models.loose import hashed


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("size", [(3, 256), (5, 300), (2, 40)])
def test_an_update_is_that_of_plain_torch(
    size: tuple[int, int], stored: torch.dtype, device: torch.device
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(size, generator=generator).to(stored)
    gradients = torch.randn(4, *size, generator=generator).to(stored)
    gradients[:, 0, 3], gradients[:, 1] = 1e-12, 0.0
    plain, state = weight.clone(), eight_bit.blank(weight)
    ours, own = weight.to(device), {name: t.to(device) for name, t in eight_bit.blank(weight).items()}
    for count, gradient in enumerate(gradients, 1):
        step = eight_bit.UpdateStep(0.01, (0.9, 0.99), 0.1, 1e-8, count)
        eight_bit.move(plain, gradient, state, step, number=5)
        seeds = [hashed(5, count, kind) for kind in range(3)]
        names = [own[name] for name in eight_bit.NAMES]
        kernel.move(ours, gradient.to(device), names, eight_bit._scalars(step), seeds)
    # Fused products may differ in the last bit, and then, rarely, in what noise makes of it.
    for name in eight_bit.MOMENTS:
        codes = (own[name].cpu().int() - state[name].int()).abs()
        assert float((codes > 0).float().mean()) < 0.01, name
        assert torch.allclose(own[f"{name}_scale"].cpu(), state[f"{name}_scale"], rtol=1e-5), name
    near = 1e-5 if stored == torch.float32 else 2**-7
    assert torch.allclose(ours.cpu().float(), plain.float(), rtol=near, atol=1e-6)
    assert float((ours.cpu() == plain).float().mean()) > (0.9 if stored == torch.bfloat16 else 0.5)


@pytest.mark.parametrize("stored", ["bfloat16", "int8"])
def test_a_sum_with_an_adapter_is_that_of_plain_torch(stored: str, device: torch.device) -> None:
    """Matrices whose sizes are no multiples of a tile, with pieces that are adapted and one that is not."""
    shape = tiny.shape(width=72, heads=9, kv_heads=3, head_dim=8, ffn=100, layers=2)
    decoder = Decoder(shape, stored=stored)  # type: ignore[arg-type]
    plain = tiny.decoder(**{**vars(shape), "extra": {}})
    for name, weight in plain.state_dict().items():
        path, _, last = name.rpartition(".")
        module = decoder.get_submodule(path)
        if stored == "int8" and last == "weight" and "embedding" not in path:
            module.load(weight)  # type: ignore[operator]
        else:
            getattr(module, last).data.copy_(weight)
    targets = ["q_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]
    lora.attach(decoder, lora.Adapter(3, 6.0, 2.0), lora.matched(decoder, targets), seed=0)
    for _, low in lora.parts(decoder):
        for b in low.b:
            b.data.normal_(0, 0.05, generator=torch.Generator().manual_seed(3))
    for layer in decoder.layers:
        assert isinstance(layer, Layer)
        for name, low in layer.adapters.items():
            assert isinstance(low, lora.LowRank)
            base = getattr(layer, name)
            wanted = low(base.weight).to(torch.bfloat16)
            kept = base.codes if stored == "int8" else base.weight
            found = torch.empty_like(wanted, device=device)
            pairs = iter(zip(low.a, low.b, strict=True))
            for piece in low.pieces:
                rows = slice(piece.start, piece.start + piece.rows)
                merging.merge(
                    kept[rows].detach().to(device),
                    base.scales[rows].to(device) if stored == "int8" else None,
                    tuple(t.detach().to(device) for t in next(pairs)) if piece.adapted else None,  # type: ignore[arg-type]
                    found[rows],
                    alpha=2.0,
                    place=lora.first_place(low.number),
                    before=piece.start * kept.shape[1],
                )
            same = found.cpu() == wanted
            assert float(same.float().mean()) > 0.995, name
            assert torch.allclose(found.cpu().float(), wanted.float(), rtol=2**-7, atol=1e-6), name
