"""Kernels for one new token of each of many sequences: its keys and values put in their place, and its
attention.

Sequences lie in pages of a cache [pages, kv_heads, PAGE, size]; `table` [rows, pages of the longest + 1] says
in which, and `positions` [rows] which token of the sequence is the new one.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

KEYS = 64  # looked at together; a page has as many or a multiple
SPLIT_FROM = 1024  # tokens of context, from which on a few long sequences are cut among multiprocessors
MOST_SPLITS = 8
FULL = 264  # programs that fill a GPU: two for a multiprocessor


@triton.jit
def _place(
    qkv, weight, turns, positions, table, q, keys, values, eps, table_stride, page_stride, head_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PADDED: tl.constexpr, SIZE: tl.constexpr,
    PAGE: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, PADDED)
    inside = column < SIZE
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head) * SIZE + column
    value = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions + row)
    page = tl.load(table + row * table_stride + position // PAGE).to(tl.int64)
    cell = page * page_stride + position % PAGE * SIZE + column
    if head >= HEADS + KV_HEADS:
        target = values + cell + (head - HEADS - KV_HEADS) * head_stride
        tl.store(target, value.to(values.dtype.element_ty), mask=inside)
    else:
        if NORM:
            scale = tl.rsqrt(tl.sum(value * value) / SIZE + eps)
            value = (
                value * scale * tl.load(weight + head * SIZE + column, mask=inside, other=0.0).to(tl.float32)
            )
        angle = tl.load(turns + position * SIZE + column, mask=inside, other=0.0)
        real, imaginary = tl.split(tl.reshape(angle, (PADDED // 2, 2)))
        even, odd = tl.split(tl.reshape(value, (PADDED // 2, 2)))
        turned = tl.join(even * real - odd * imaginary, even * imaginary + odd * real)
        turned = tl.reshape(turned, (PADDED,)).to(q.dtype.element_ty)
        if head < HEADS:
            target = q + (row * HEADS + head) * SIZE + column
        else:
            target = keys + cell + (head - HEADS) * head_stride
        tl.store(target, turned, mask=inside)


@triton.jit
def _attend(
    q, keys, values, positions, table, out, highest_of, total_of, scale, table_stride, page_stride,
    head_stride, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr,
    SIZE: tl.constexpr, PADDED: tl.constexpr, KEYS: tl.constexpr, BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """The SHARE query heads of one key-value head, rows of a small matrix; online softmax over keys.

    A page has BLOCKS blocks of keys. The number of the next block's page is fetched while this one is
    computed, so that no load of keys waits for it."""
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(positions + row) + 1
    pages = table + row * table_stride
    member, column, key = tl.arange(0, WIDE), tl.arange(0, PADDED), tl.arange(0, KEYS)
    head = kv_head * SHARE + member
    of_query = (member < SHARE)[:, None] & (column < SIZE)[None, :]
    query = tl.load(q + (row * HEADS + head)[:, None] * SIZE + column[None, :], mask=of_query, other=0.0)
    highest = tl.full((WIDE,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((WIDE,), dtype=tl.float32)
    sum_ = tl.zeros((WIDE, PADDED), dtype=tl.float32)
    blocks = tl.cdiv(length, KEYS)
    share = tl.cdiv(blocks, SPLITS)
    if SPLITS == 1:
        page = tl.load(pages)
    else:
        page = tl.load(pages + split * share // BLOCKS, mask=split * share < blocks, other=0)
    for block in range(split * share, tl.minimum(blocks, (split + 1) * share)):
        place = block * KEYS + key
        there = (place < length)[:, None] & (column < SIZE)[None, :]
        base = page.to(tl.int64) * page_stride + kv_head * head_stride + block % BLOCKS * (KEYS * SIZE)
        cell = base + key[:, None] * SIZE + column[None, :]
        page = tl.load(pages + (block + 1) // BLOCKS)
        k = tl.load(keys + cell, mask=there, other=0.0)
        scores = tl.dot(query, tl.trans(k)) * scale
        scores = tl.where((place < length)[None, :], scores, float("-inf"))
        above = tl.maximum(highest, tl.max(scores, axis=1))
        shrink = tl.exp2(highest - above)
        p = tl.exp2(scores - above[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        v = tl.load(values + cell, mask=there, other=0.0)
        sum_ = sum_ * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        highest = above
    if SPLITS == 1:
        target = out + (row * HEADS + head)[:, None] * SIZE + column[None, :]
        tl.store(target, (sum_ / total[:, None]).to(out.dtype.element_ty), mask=of_query)
    else:
        part = (row * HEADS + head) * SPLITS + split
        tl.store(highest_of + part, highest, mask=member < SHARE)
        tl.store(total_of + part, total, mask=member < SHARE)
        tl.store(out + part[:, None] * SIZE + column[None, :], sum_, mask=of_query)


@triton.jit
def _join(parts, highest_of, total_of, out, SIZE: tl.constexpr, PADDED: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, SPLITS), tl.arange(0, PADDED)
    inside = (column < SIZE)[None, :] & (split >= 0)[:, None]
    highest = tl.load(highest_of + head * SPLITS + split)
    weight = tl.exp2(highest - tl.max(highest))
    total = tl.sum(weight * tl.load(total_of + head * SPLITS + split))
    part = tl.load(parts + (head * SPLITS + split)[:, None] * SIZE + column[None, :], mask=inside, other=0.0)
    sum_ = tl.sum(part * weight[:, None], axis=0)
    tl.store(out + head * SIZE + column, (sum_ / total).to(out.dtype.element_ty), mask=column < SIZE)


def place(
    qkv: Tensor, weight: Tensor | None, eps: float, turns: Tensor, positions: Tensor, table: Tensor,
    keys: Tensor, values: Tensor, heads: int,
) -> Tensor:  # fmt: skip
    """Queries [rows, heads, size], turned; keys and values are in the cache. `turns` [context, size / 2]."""
    kv_heads, size = keys.shape[1], keys.shape[3]
    q = qkv.new_empty(len(qkv), heads, size)
    _place[(len(qkv), heads + 2 * kv_heads)](
        qkv, qkv if weight is None else weight, torch.view_as_real(turns), positions, table, q, keys, values,
        eps, table.stride(0), keys.stride(0), keys.stride(1), HEADS=heads, KV_HEADS=kv_heads,
        PADDED=triton.next_power_of_2(size), SIZE=size, PAGE=keys.shape[2], NORM=weight is not None,
        num_warps=1,
    )  # fmt: skip
    return q


def splits(rows: int, kv_heads: int, context: int) -> int:
    """The number of parts that the keys of a sequence are split into: a power of two."""
    if context < SPLIT_FROM:
        return 1
    wanted = max(1, min(MOST_SPLITS, FULL // (rows * kv_heads)))
    return 1 << (wanted.bit_length() - 1)


def attend(q: Tensor, keys: Tensor, values: Tensor, positions: Tensor, table: Tensor) -> Tensor:
    """[rows, heads, size]: each row's query over the tokens of its pages up to its position."""
    rows, heads, size = q.shape
    kv_heads, page = keys.shape[1], keys.shape[2]
    context = (table.shape[1] - 1) * page
    parts = splits(rows, kv_heads, context)
    padded = max(16, triton.next_power_of_2(size))
    out, target = torch.empty_like(q), q
    highest = total = positions  # written only where there are parts
    if parts > 1:
        target = torch.empty(rows, heads, parts, size, dtype=torch.float32, device=q.device)
        highest, total = torch.empty(2, rows, heads, parts, dtype=torch.float32, device=q.device)
    _attend[(rows, kv_heads, parts)](
        q, keys, values, positions, table, out if parts == 1 else target, highest, total,
        size**-0.5 * 1.4426950408889634, table.stride(0), keys.stride(0), keys.stride(1), HEADS=heads,
        KV_HEADS=kv_heads, SHARE=heads // kv_heads, WIDE=max(16, triton.next_power_of_2(heads // kv_heads)),
        SIZE=size, PADDED=padded, KEYS=KEYS, BLOCKS=page // KEYS, SPLITS=parts, num_warps=4,
    )  # fmt: skip
    if parts > 1:
        _join[(rows * heads,)](
            target, highest, total, out, SIZE=size, PADDED=padded, SPLITS=parts, num_warps=1
        )
    return out
