"""An adapter added to a base in bfloat16 or eight bits, in one pass: round(loose(W) + α/r · B A)."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from toolwright.models.kernels.eight_bit import _mixed

ROWS, COLUMNS = 64, 128  # of a tile; as many columns share a scale


@triton.jit
def _nearest(x):
    """Round a float32 to the nearest bfloat16 value, ties to even: not every backend rounds that way."""
    bits = x.to(tl.uint32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["place", "before"])
def _merge(
    base, scales, a, b, out, rows, columns, blocks, alpha, place, before,
    RANK: tl.constexpr, PADDED: tl.constexpr, CODES: tl.constexpr, ADAPTED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    weight = tl.load(base + at, mask=inside, other=0).to(tl.float32)
    if CODES:
        scale = tl.load(scales + row.to(tl.int64) * blocks + tl.program_id(1), mask=row < rows, other=0.0)
        weight = _nearest(weight * scale[:, None])
    if ADAPTED:
        number = at + before
        own = ((place + (number >> 20 << 20)) & 0x7FFFFFFF) + (number & 0xFFFFF)
        away = _mixed(own.to(tl.uint32)) & 0xFFFF
        away = tl.maximum(away.to(tl.int32) - 32768, -32767)
        fixed = (weight == 0) | (tl.abs(weight) == float("inf")) | (weight != weight)
        weight = (weight.to(tl.int32, bitcast=True) + tl.where(fixed, 0, away)).to(tl.float32, bitcast=True)
        rank = tl.arange(0, PADDED)
        known = rank < RANK
        left = tl.load(
            b + row[:, None] * RANK + rank[None, :], mask=(row < rows)[:, None] & known[None, :], other=0.0
        )
        right = tl.load(
            a + rank[:, None] * columns + column[None, :],
            mask=known[:, None] & (column < columns)[None, :],
            other=0.0,
        )
        weight += alpha * tl.dot(left, right, input_precision="ieee")
    tl.store(out + at, _nearest(weight).to(tl.bfloat16), mask=inside)


def merge(
    base: Tensor,
    scales: Tensor | None,
    low: tuple[Tensor, Tensor] | None,
    out: Tensor,
    *,
    alpha: float,
    place: int,
    before: int,
) -> None:
    """Write some rows of a matrix, with its adapter added, to `out`. `low`: A and B of the adapter; None: the
    base alone. `place`: the matrix's first number in the noise of `models/loose.py`. `before`: how many
    numbers of the matrix precede these rows."""
    rows, columns = base.shape
    a, b = (base, base) if low is None else low
    rank = 1 if low is None else len(a)
    blocks = triton.cdiv(columns, COLUMNS)
    _merge[(triton.cdiv(rows, ROWS), blocks)](
        base, base if scales is None else scales, a, b, out, rows, columns, blocks, alpha, place % (1 << 31),
        before, RANK=rank, PADDED=max(16, triton.next_power_of_2(rank)), CODES=scales is not None,
        ADAPTED=low is not None, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=4,
    )  # fmt: skip
