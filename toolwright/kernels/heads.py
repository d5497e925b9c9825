"""From one product to queries, keys and values: norm of each head where a model has it, then its turn."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

NUMBERS = 4096  # of a tile: tokens × head


@triton.jit
def _forward(
    x, weight, turn, y, tokens, x_row, y_row, eps,
    PADDED: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """One head of some tokens: SIZE numbers, of which 2i and 2i + 1 turn together."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head, column = tl.program_id(1), tl.arange(0, PADDED)
    within = column < SIZE
    there = (token < tokens)[:, None] & within[None, :]
    value = tl.load(x + token[:, None] * x_row + head * SIZE + column[None, :], mask=there, other=0.0)
    value = value.to(tl.float32)
    if NORM:
        scale = tl.rsqrt(tl.sum(value * value, axis=1) / SIZE + eps)
        gain = tl.load(weight + head * SIZE + column, mask=within, other=0.0).to(tl.float32)
        value = value * scale[:, None] * gain[None, :]
    angle = tl.load(turn + token[:, None] * SIZE + column[None, :], mask=there, other=0.0)
    real, imaginary = tl.split(tl.reshape(angle, (TOKENS, PADDED // 2, 2)))
    even, odd = tl.split(tl.reshape(value, (TOKENS, PADDED // 2, 2)))
    out = tl.join(even * real - odd * imaginary, even * imaginary + odd * real)
    out = tl.reshape(out, (TOKENS, PADDED)).to(y.dtype.element_ty)
    tl.store(y + token[:, None] * y_row + head * SIZE + column[None, :], out, mask=there)


@triton.jit
def _backward(
    dy, x, weight, turn, dx, dweight, tokens, dy_row, x_row, eps,
    PADDED: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    head, column = tl.program_id(1), tl.arange(0, PADDED)
    within = column < SIZE
    there = (token < tokens)[:, None] & within[None, :]
    given = tl.load(dy + token[:, None] * dy_row + head * SIZE + column[None, :], mask=there, other=0.0)
    angle = tl.load(turn + token[:, None] * SIZE + column[None, :], mask=there, other=0.0)
    real, imaginary = tl.split(tl.reshape(angle, (TOKENS, PADDED // 2, 2)))
    even, odd = tl.split(tl.reshape(given.to(tl.float32), (TOKENS, PADDED // 2, 2)))
    back = tl.join(even * real + odd * imaginary, odd * real - even * imaginary)  # turned back
    back = tl.reshape(back, (TOKENS, PADDED))
    place = token[:, None] * x_row + head * SIZE + column[None, :]
    if NORM:
        scaled = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(scaled * scaled, axis=1) / SIZE + eps)[:, None]
        scaled = scaled * scale
        share = dweight + (tl.program_id(0) * tl.num_programs(1) + head) * SIZE + column
        tl.store(share, tl.sum(back * scaled, axis=0), mask=within)
        back = back * tl.load(weight + head * SIZE + column, mask=within, other=0.0).to(tl.float32)[None, :]
        back = (back - scaled * (tl.sum(back * scaled, axis=1) / SIZE)[:, None]) * scale
    tl.store(dx + place, back.to(dx.dtype.element_ty), mask=there)


def _tile(size: int) -> dict[str, int]:
    padded = triton.next_power_of_2(size)
    return {"PADDED": padded, "SIZE": size, "TOKENS": max(1, NUMBERS // padded)}


class _Heads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, weight: Tensor | None, eps: float, turn: Tensor, heads: int, kv_heads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        tokens, turning = len(qkv), heads + kv_heads
        size = qkv.shape[1] // (turning + kv_heads)
        tile, angle = _tile(size), torch.view_as_real(turn)
        out = qkv.new_empty(tokens, turning, size)
        grid = (triton.cdiv(tokens, tile["TOKENS"]), turning)
        normed = weight is not None
        row = turning * size
        given = weight if normed else qkv
        _forward[grid](qkv, given, angle, out, tokens, qkv.shape[1], row, eps, NORM=normed, **tile)
        ctx.save_for_backward(qkv, weight, turn)
        ctx.eps, ctx.heads, ctx.kv_heads = eps, heads, kv_heads
        q, k = out.split_with_sizes((heads, kv_heads), dim=1)
        v = qkv[:, row:].reshape(tokens, kv_heads, size).clone()
        return q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        qkv, weight, turn = ctx.saved_tensors
        heads, kv_heads, tokens = ctx.heads, ctx.kv_heads, len(qkv)
        dq, dk, dv = (gradient.contiguous() for gradient in gradients)
        size = dq.shape[2]
        tile, angle, normed = _tile(size), torch.view_as_real(turn), weight is not None
        blocks = triton.cdiv(tokens, tile["TOKENS"])
        back, shares = torch.empty_like(qkv), []
        begin = 0
        for given, count in ((dq, heads), (dk, kv_heads)):
            part = slice(begin * size, None)
            share = qkv.new_empty(blocks if normed else 0, count, size, dtype=torch.float32)
            _backward[(blocks, count)](
                given, qkv[:, part], weight[begin:] if normed else qkv, angle, back[:, part], share,
                tokens, count * size, qkv.shape[1], ctx.eps, NORM=normed, **tile,
            )  # fmt: skip
            shares.append(share)
            begin += count
        back[:, begin * size :] = dv.view(tokens, -1)
        of_weight = torch.cat([share.sum(0) for share in shares]).to(weight.dtype) if normed else None
        return back, of_weight, None, None, None, None


def split_heads(
    qkv: Tensor, weight: Tensor | None, eps: float, turn: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[tokens, (heads + 2 kv_heads) · size] -> q, k, v [tokens, …, size]; `weight` is the norm's, a row
    for each head; `turn` [tokens, 1, size / 2] complex."""
    q, k, v = _Heads.apply(qkv.contiguous(), weight, eps, turn, heads, kv_heads)
    return q, k, v
