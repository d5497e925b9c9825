"""AdamW with moments in eight bits: what `learner/eight_bit.py` does, in one pass over a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 256


@triton.jit
def _mixed(place):
    """lowbias32"""
    place ^= place >> 16
    place *= 0x7FEB352D
    place ^= place >> 15
    place *= 0x846CA68B
    return place ^ (place >> 16)


@triton.jit
def _decoded(code, M: tl.constexpr):
    normal = ((code + (112 << M)) << (23 - M)).to(tl.float32, bitcast=True)
    return tl.where(code < (1 << M), code.to(tl.float32) * (1.0 / (1 << (14 + M))), normal)


@triton.jit
def _encoded(size, bits, M: tl.constexpr):
    chance = (bits & ((1 << (23 - M)) - 1)).to(tl.int32)
    normal = ((size.to(tl.int32, bitcast=True) + chance) >> (23 - M)) - (112 << M)
    small = tl.floor(size * (1 << (14 + M)) + chance.to(tl.float32) * (1.0 / (1 << (23 - M)))).to(tl.int32)
    code = tl.where(size < 1.0 / (1 << 14), small, normal)
    return tl.minimum(code, (1 << (4 + M)) - 1)


@triton.jit(do_not_specialize=["seed_first", "seed_root", "seed_weight"])
def _move(
    weight, gradient, first, first_scale, root, root_scale, columns, blocks,
    shrink, beta1, beta2, length, correction, eps, seed_first, seed_root, seed_weight,
    ROUND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Work on one block of one row."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    place = row * columns + column
    scale = row * blocks + block
    g = tl.load(gradient + place, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    code = tl.load(first + place, mask=inside, other=0).to(tl.int32)
    m = _decoded(code & 0x7F, 3)
    m = tl.where(code > 0x7F, -m, m) * tl.load(first_scale + scale)
    r = _decoded(tl.load(root + place, mask=inside, other=0).to(tl.int32), 4) * tl.load(root_scale + scale)

    m = beta1 * m + (1 - beta1) * g
    r = tl.sqrt(beta2 * r * r + (1 - beta2) * g * g)
    w = w * shrink - length * (m / (r / correction + eps))

    low = place.to(tl.uint32)
    new_scale = tl.max(tl.abs(m)) / 1.875
    size = tl.where(new_scale > 0, tl.abs(m) / new_scale, 0.0)
    code = _encoded(size, _mixed(low ^ seed_first.to(tl.uint32)), 3) + tl.where(m < 0, 128, 0)
    tl.store(first + place, code.to(tl.uint8), mask=inside)
    tl.store(first_scale + scale, new_scale)
    new_scale = tl.max(r) / 1.9375
    size = tl.where(new_scale > 0, r / new_scale, 0.0)
    code = tl.maximum(_encoded(size, _mixed(low ^ seed_root.to(tl.uint32)), 4), tl.where(size > 0, 1, 0))
    tl.store(root + place, code.to(tl.uint8), mask=inside)
    tl.store(root_scale + scale, new_scale)
    if ROUND:
        bits = (_mixed(low ^ seed_weight.to(tl.uint32)) & 0xFFFF).to(tl.int32)
        w = ((w.to(tl.int32, bitcast=True) + bits) & -65536).to(tl.float32, bitcast=True)
    tl.store(weight + place, w.to(weight.dtype.element_ty), mask=inside)


def move(
    weight: Tensor, gradient: Tensor, state: Sequence[Tensor], scalars: Sequence[float], seeds: Sequence[int]
) -> None:
    """`state`: codes and scales of the first moments, then of the second ones' roots."""
    rows, columns = weight.shape
    blocks = triton.cdiv(columns, BLOCK)
    _move[(rows, blocks)](
        weight, gradient.contiguous(), *state, columns, blocks, *scalars,
        *seeds, ROUND=weight.dtype == torch.bfloat16, BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
