"""Attention of many short sequences by plain products: on a CPU, twice as fast as the fused kernel.

Keeps every probability for the way back, so it is for sequences of at most `LONGEST` tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.models.products import batched

PIECE = 64  # queries that are given the same keys: of those after a query it sees none
LONGEST = 512  # tokens: a token's probabilities then take no more memory than the rest that it leaves behind


# A softmax adds up in lanes of sixteen, and zeros after the end change nothing: with keys a multiple of that,
# it does not depend on how many there are.
ALIGNED = 16


def aligned(keys: int) -> int:
    return -(-keys // ALIGNED) * ALIGNED


def attended(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return what each query gathers, [batch, rows, dim], and its probabilities, [batch, rows, aligned].

    Scaled queries are [batch, rows, dim], keys [batch, dim, aligned], values [batch, aligned, dim]."""
    probability = batched(queries, keys).add_(bias).softmax(-1)
    return batched(probability, values), probability


class Span(NamedTuple):
    """Rows [rows] of packed tokens: where each begins, its first query, and how many tokens it has."""

    starts: Tensor
    offsets: Tensor
    lengths: Tensor


def pieces(span: Span) -> list[Span]:
    """The same, some queries at a time: the first of them then look at few keys, not at all that come later
    and are masked."""
    starts, offsets, lengths = span
    found = []
    for done in range(0, max(1, int((lengths - offsets).max())), PIECE):
        first = torch.minimum(offsets + done, lengths)
        until = torch.minimum(first + PIECE, lengths)
        rows = slice(None) if done == 0 else first < until
        found.append(Span(starts[rows], first[rows], until[rows]))
    return found


class AttentionBlock:
    """A span's rows side by side. Query heads that share a key-value head stand in one matrix."""

    def __init__(self, span: Span, where: Tensor, heads: int, kv_heads: int) -> None:
        """`where` the state of every packed token is, among those computed."""
        starts, offsets, lengths = (column[:, None] for column in span)
        query = offsets + torch.arange(int((lengths - offsets).max()))  # [rows, most]
        key = torch.arange(aligned(int(lengths.max())))
        absent = query >= lengths
        self.batch, self.padded = len(starts) * kv_heads, bool(absent.any())
        self.absent = absent[:, None].expand(-1, heads, -1).flatten()
        # What stands in for a token that is not there is never looked at, and has no gradient.
        self.queries = _of_heads(where[(starts + query).masked_fill_(absent, 0)], heads)
        self.keys = _of_heads(where[(starts + key).masked_fill_(key >= lengths, 0)], kv_heads)
        alike = bool((offsets == offsets[0]).all())
        later = key > query[: 1 if alike else None, :, None]
        bias = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
        bias = bias.repeat(1, heads // kv_heads, 1).repeat_interleave(1 if alike else kv_heads, 0)
        self.bias = bias.expand(self.batch, -1, -1)

    def split(self, x: Tensor, index: Tensor) -> Tensor:
        """[tokens, heads, dim] -> [batch, rows of a matrix, dim]"""
        return x.reshape(-1, x.shape[2]).index_select(0, index).view(self.batch, -1, x.shape[2])


def _of_heads(token: Tensor, heads: int) -> Tensor:
    """[rows, tokens] -> [rows × heads × tokens], as indices into tokens × heads."""
    return (token[:, None] * heads + torch.arange(heads)[:, None]).flatten()


class BlockAttention:
    """Causal attention over spans that together hold every computed token once as a query."""

    def __init__(self, spans: Sequence[Span], where: Tensor, heads: int, kv_heads: int) -> None:
        parts = [part for span in spans for part in pieces(span)]
        self.blocks = [AttentionBlock(part, where, heads, kv_heads) for part in parts]
        queries = torch.cat([block.queries for block in self.blocks])
        there = (~torch.cat([block.absent for block in self.blocks])).nonzero()[:, 0]
        self.place = torch.empty_like(there)  # of each token and head among the blocks' queries
        self.place[queries[there]] = there

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if torch.is_grad_enabled() and q.requires_grad:
            out: Tensor = _Blocks.apply(self, q, k, v)
            return out
        return self.join([out for out, *_ in self.forward(q, k, v)], q.shape)

    def join(self, pieces: list[Tensor], shape: torch.Size) -> Tensor:
        flat = [piece.view(-1, shape[2]) for piece in pieces]
        return (flat[0] if len(flat) == 1 else torch.cat(flat)).index_select(0, self.place).view(shape)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> list[tuple[Tensor, ...]]:
        """(result, scaled queries, keys, values, probabilities) of each block."""
        done: list[tuple[Tensor, ...]] = []
        for block in self.blocks:
            queries, keys, values = (
                block.split(x, index) for x, index in ((q, block.queries), (k, block.keys), (v, block.keys))
            )
            queries.mul_(q.shape[2] ** -0.5)
            out, probability = attended(queries, keys.transpose(1, 2).contiguous(), values, block.bias)
            done.append((out, queries, keys, values, probability))
        return done


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, attention: BlockAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        done = attention.forward(q, k, v)
        ctx.attention, ctx.shapes = attention, (q.shape, k.shape)
        ctx.save_for_backward(*(x for block in done for x in block[1:]))
        return attention.join([out for out, *_ in done], q.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        attention, (shape, kv_shape) = ctx.attention, ctx.shapes
        scale, saved = shape[2] ** -0.5, iter(ctx.saved_tensors)
        of_queries = []
        of_keys, of_values = (gradients[0].new_zeros(kv_shape).view(-1, shape[2]) for _ in range(2))
        for block in attention.blocks:
            q, k, v, p = (next(saved) for _ in range(4))
            gradient = block.split(gradients[0], block.queries)
            if block.padded:
                gradient.view(-1, shape[2]).masked_fill_(block.absent[:, None], 0.0)
            values = torch.bmm(p.transpose(1, 2), gradient)
            scores = torch.bmm(
                gradient, v.transpose(1, 2)
            )  # of probabilities, then of what they were made of
            torch.ops.aten._softmax_backward_data.out(scores, p, -1, p.dtype, grad_input=scores)
            of_queries.append(torch.baddbmm(q, scores, k, beta=0, alpha=scale))
            keys = torch.bmm(scores.transpose(1, 2), q)
            of_keys.index_add_(0, block.keys, keys.view(-1, shape[2]))
            of_values.index_add_(0, block.keys, values.view(-1, shape[2]))
        return None, attention.join(of_queries, shape), of_keys.view(kv_shape), of_values.view(kv_shape)
