"""What the learner computes with: forward and back, against autograd through plain PyTorch in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.kernels import gated, heads, likelihood, norm
from toolwright.models.gated import swiglu
from toolwright.models.norm import rms_norm

PRECISIONS = pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 2e-5), (torch.bfloat16, 2e-2)])


def numbers(*size: int, device: torch.device, dtype: torch.dtype, seed: int = 0) -> Tensor:
    made = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype).to(device).requires_grad_()


def alike(mine: Tensor, theirs: Tensor, close: float) -> None:
    assert mine.shape == theirs.shape
    assert torch.isfinite(mine).all()
    assert float((mine.double() - theirs).norm() / theirs.norm()) < close


def compare(mine: Any, theirs: Any, given: list[Tensor], close: float) -> None:
    """Both on the same numbers: results, and what a random gradient gives each input."""
    wide = [x.detach().double().requires_grad_() for x in given]
    results, wanted = mine(*given), theirs(*wide)
    for i, (a, b) in enumerate(zip(results, wanted, strict=True)):
        alike(a.detach(), b.detach(), close)
        pull = numbers(*b.shape, device=b.device, dtype=torch.float64, seed=7 + i).detach()
        a.backward(pull.to(a.dtype), retain_graph=True)
        b.backward(pull, retain_graph=True)
    for a, b in zip(given, wide, strict=True):
        assert a.grad is not None
        assert b.grad is not None
        alike(a.grad, b.grad, close)


@PRECISIONS
@pytest.mark.parametrize("size", [(5, 48), (3, 64), (1, 7), (40, 576)])
def test_norm(size: tuple[int, int], dtype: torch.dtype, close: float, device: torch.device) -> None:
    x, weight = (
        numbers(*size, device=device, dtype=dtype),
        numbers(size[1], device=device, dtype=dtype, seed=1),
    )
    compare(
        lambda x, w: [norm.rms_norm(x, w, 1e-5)],
        lambda x, w: [x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w],
        [x, weight],
        close,
    )


@PRECISIONS
@pytest.mark.parametrize("size", [(5, 24), (3, 2048), (1, 3000)])
def test_swiglu(size: tuple[int, int], dtype: torch.dtype, close: float, device: torch.device) -> None:
    compare(
        lambda x: [gated.swiglu(x)],
        lambda x: [swiglu(x)],
        [numbers(*size, device=device, dtype=dtype)],
        close,
    )


@PRECISIONS
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("tokens", "count", "kv", "size"), [(3, 4, 2, 16), (130, 3, 3, 64), (33, 5, 1, 24)])
def test_heads(
    tokens: int, count: int, kv: int, size: int, normed: bool, dtype: torch.dtype, close: float, device: Any
) -> None:
    qkv = numbers(tokens, (count + 2 * kv) * size, device=device, dtype=dtype)
    angle = torch.randn(tokens, 1, size // 2, device=device, dtype=torch.float64)
    turn = torch.polar(torch.ones_like(angle), angle)
    given = [qkv] + ([numbers(count + kv, size, device=device, dtype=dtype, seed=1)] if normed else [])

    def plainly(qkv: Tensor, weight: Tensor | None = None) -> tuple[Tensor, ...]:
        heads = qkv.view(tokens, count + 2 * kv, size)
        qk, v = heads.split_with_sizes((count + kv, kv), dim=1)
        if weight is not None:
            qk = rms_norm(qk, weight, 1e-6)
        turned = torch.view_as_real(torch.view_as_complex(qk.reshape(tokens, -1, size // 2, 2)) * turn)
        q, k = turned.flatten(2).split_with_sizes((count, kv), dim=1)
        return q, k, v

    def ours(qkv: Tensor, weight: Tensor | None = None) -> tuple[Tensor, ...]:
        return heads.split_heads(qkv, weight, 1e-6, turn.to(torch.complex64), count, kv)

    compare(ours, plainly, given, close)


@PRECISIONS
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("rows", "vocab"), [(5, 40), (3, 9000)])
def test_likelihood(
    rows: int, vocab: int, temperature: float, dtype: torch.dtype, close: float, device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if device.type == "cpu" and dtype == torch.bfloat16:
        pytest.skip("the products around the kernel are in bfloat16, which not every CPU has")
    monkeypatch.setattr(likelihood, "LOGITS_AT_ONCE", 2 * vocab)  # several chunks, the last one smaller
    hidden = numbers(rows, 16, device=device, dtype=dtype)
    weight = numbers(vocab, 16, device=device, dtype=torch.float32, seed=1)
    target = torch.arange(rows, device=device) * (vocab // rows)

    def plainly(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        every = (hidden @ weight.to(dtype).double().t() / temperature).log_softmax(-1)
        return every.gather(1, target[:, None])[:, 0], -(every.exp() * every).sum(-1)

    def ours(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return likelihood.likelihood(hidden, weight, target, temperature)[:2]

    with torch.no_grad():
        squares = likelihood.likelihood(hidden, weight, target, temperature)[2]
        every = (hidden.double() @ weight.to(dtype).double().t() / temperature).softmax(-1)
        alike(squares, every.square().sum(-1), close)
    compare(ours, plainly, [hidden, weight], close)
