"""From one product to queries, keys and values: norm of each head where a model has it, then its turn."""

from __future__ import annotations

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
def _turned_back(
    given, place, own, there, x, gain, share, turn, dx, eps,
    PADDED: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Backward pass of rotation and norm for one head of queries or keys."""
    within = tl.arange(0, PADDED) < SIZE
    angle = tl.load(turn, mask=there, other=0.0)
    real, imaginary = tl.split(tl.reshape(angle, (TOKENS, PADDED // 2, 2)))
    value = tl.load(given + own, mask=there, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(value, (TOKENS, PADDED // 2, 2)))
    back = tl.join(even * real + odd * imaginary, odd * real - even * imaginary)
    back = tl.reshape(back, (TOKENS, PADDED))
    if NORM:
        scaled = tl.load(x + place, mask=there, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(scaled * scaled, axis=1) / SIZE + eps)[:, None]
        scaled = scaled * scale
        tl.store(share, tl.sum(back * scaled, axis=0), mask=within)
        back = back * tl.load(gain, mask=within, other=0.0).to(tl.float32)[None, :]
        back = (back - scaled * (tl.sum(back * scaled, axis=1) / SIZE)[:, None]) * scale
    tl.store(dx + place, back.to(dx.dtype.element_ty), mask=there)


@triton.jit
def _backward(
    dq, dk, dv, x, weight, turn, dx, dweight, tokens, x_row, eps, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    PADDED: tl.constexpr, SIZE: tl.constexpr, TOKENS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Each branch uses what it loads: merging the branches first would make Triton change the layout."""
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)[:, None]
    head, column = tl.program_id(1), tl.arange(0, PADDED)
    there = (token < tokens) & (column < SIZE)[None, :]
    place = token * x_row + head * SIZE + column[None, :]
    gain = weight + head * SIZE + column
    share = dweight + (tl.program_id(0) * (HEADS + KV_HEADS) + head) * SIZE + column
    angle = turn + token * SIZE + column[None, :]
    if head < HEADS:
        own = token * (HEADS * SIZE) + head * SIZE + column[None, :]
        _turned_back(dq, place, own, there, x, gain, share, angle, dx, eps, PADDED, SIZE, TOKENS, NORM)
    elif head < HEADS + KV_HEADS:
        own = token * (KV_HEADS * SIZE) + (head - HEADS) * SIZE + column[None, :]
        _turned_back(dk, place, own, there, x, gain, share, angle, dx, eps, PADDED, SIZE, TOKENS, NORM)
    else:  # a value: neither scaled nor turned
        own = token * (KV_HEADS * SIZE) + (head - HEADS - KV_HEADS) * SIZE + column[None, :]
        tl.store(dx + place, tl.load(dv + own, mask=there, other=0.0), mask=there)


def _tile(size: int) -> dict[str, int]:
    padded = triton.next_power_of_2(size)
    return {"PADDED": padded, "SIZE": size, "TOKENS": max(1, NUMBERS // padded)}


def split_heads(
    qkv: Tensor, weight: Tensor | None, eps: float, turn: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """[tokens, (heads + 2 kv_heads) · size] -> q, k, v [tokens, …, size], the values where they are; `weight`
    is the norm's, a row for each head; `turn` [tokens, 1, size / 2] complex."""
    tokens, turning = len(qkv), heads + kv_heads
    size = qkv.shape[1] // (turning + kv_heads)
    tile, angle, normed, row = _tile(size), torch.view_as_real(turn), weight is not None, turning * size
    out = qkv.new_empty(tokens, turning, size)
    grid = (triton.cdiv(tokens, tile["TOKENS"]), turning)
    given = weight if normed else qkv
    _forward[grid](qkv, given, angle, out, tokens, qkv.shape[1], row, eps, NORM=normed, **tile)
    q, k = out.split_with_sizes((heads, kv_heads), dim=1)
    return q, k, qkv[:, row:].unflatten(1, (kv_heads, size))


def back(
    gradients: tuple[Tensor, ...], qkv: Tensor, weight: Tensor | None, eps: float, turn: Tensor
) -> tuple[Tensor, Tensor | None]:
    """From those of q, k and v, each of which lies by itself, to those of what they were made of and of the
    norm's weight."""
    (tokens, heads, size), kv_heads = gradients[0].shape, gradients[1].shape[1]
    tile, angle, normed = _tile(size), torch.view_as_real(turn), weight is not None
    blocks = triton.cdiv(tokens, tile["TOKENS"])
    found = torch.empty_like(qkv)
    shares = qkv.new_empty(blocks if normed else 0, heads + kv_heads, size, dtype=torch.float32)
    _backward[(blocks, heads + 2 * kv_heads)](
        *gradients, qkv, weight if normed else qkv, angle, found, shares, tokens, qkv.shape[1], eps,
        HEADS=heads, KV_HEADS=kv_heads, NORM=normed, **tile,
    )  # fmt: skip
    return found, shares.sum(0) if normed else None
