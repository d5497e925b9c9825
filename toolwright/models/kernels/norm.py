"""Root-mean-square norm: one pass forward, one pass back."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 528  # on the way back, each with a share of the weight's gradient: four for a multiprocessor


@triton.jit
def _forward(x, weight, y, scale, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    value = tl.load(x + row * size + column, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(value * value) / size + eps)
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(scale + row, inverse)
    tl.store(y + row * size + column, (value * inverse * gain).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(
    dy, x, weight, scale, beside, dx, dweight, rows, size, BLOCK: tl.constexpr, BESIDE: tl.constexpr
):
    """x̂ = x · scale;  dx = (ĝ − x̂ · mean(ĝ · x̂)) · scale  with ĝ = dy · weight;  dweight = Σ dy · x̂.
    `beside` is added to dx: what reached x another way."""
    first, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    column = tl.arange(0, BLOCK)
    inside = column < size
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for turn in range(tl.cdiv(rows - tl.program_id(0), programs)):
        row = first + turn * programs
        place = row * size + column
        inverse = tl.load(scale + row)
        scaled = tl.load(x + place, mask=inside, other=0.0).to(tl.float32) * inverse
        gradient = tl.load(dy + place, mask=inside, other=0.0).to(tl.float32)
        total += gradient * scaled
        along = gradient * gain
        back = (along - scaled * (tl.sum(along * scaled) / size)) * inverse
        if BESIDE:
            back += tl.load(beside + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(dx + place, back.to(dx.dtype.element_ty), mask=inside)
    tl.store(dweight + first * size + column, total, mask=inside)


def _warps(block: int) -> int:
    return min(max(block // 256, 1), 8)


def normed(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The normalised rows, and the factor that each row was multiplied by."""
    size = x.shape[-1]
    rows, block = x.numel() // size, triton.next_power_of_2(size)
    y, scale = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
    _forward[(rows,)](x, weight, y, scale, size, eps, BLOCK=block, num_warps=_warps(block))
    return y, scale


def back(
    gradient: Tensor, x: Tensor, weight: Tensor, scale: Tensor, beside: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The gradients of x, with what reached it `beside` the norm, and of the weight."""
    size, rows = x.shape[-1], len(scale)
    block, programs = triton.next_power_of_2(size), min(rows, PROGRAMS)
    dx = torch.empty_like(x)
    shares = torch.empty(programs, size, dtype=torch.float32, device=x.device)
    _backward[(programs,)](
        gradient, x, weight, scale, x if beside is None else beside, dx, shares, rows, size,
        BLOCK=block, BESIDE=beside is not None, num_warps=_warps(block),
    )  # fmt: skip
    return dx, shares.sum(0).to(weight.dtype)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scale = normed(x, weight, eps)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return (*back(gradients[0].contiguous(), *ctx.saved_tensors), None)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """[…, size] · [size], in the type of `x`."""
    x = x.contiguous()
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out: Tensor = _RMSNorm.apply(x, weight, eps)
        return out
    return normed(x, weight, eps)[0]
