"""Attention as learner and engine both compute it, in one order, so that their numbers agree.

Sums over keys are the one place where the learner, which sees whole sequences, and the engine, which sees one
token at a time, would add up in different orders; a trained network amplifies that difference a hundredfold.
On a CPU, in float32, both therefore take the steps of `in_order`, and agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.batch import sent
from toolwright.models import kernels
from toolwright.models.blocks import LONGEST, BlockAttention, Span, aligned, attended

if TYPE_CHECKING:
    from toolwright.models.kernels.flash import FlashAttention

QUERIES_AT_ONCE = 128  # of a long sequence: bounds the memory of its scores


def ordered(x: Tensor) -> bool:
    """True if the order of sums is kept. Elsewhere learner and engine differ by more than that anyway."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def in_order(
    q: Tensor,  # [rows, heads, queries, dim]
    k: Tensor,  # [rows, kv_heads, dim, keys]: keys a multiple of `ALIGNED`
    v: Tensor,  # [rows, kv_heads, keys, dim]
    positions: Tensor,  # [rows or 1, queries]: the last key that each query sees
) -> Tensor:
    """Softmax attention, [rows, heads, queries, dim]."""
    rows, heads, count, dim = q.shape
    kv_heads = k.shape[1]
    k, v = k.flatten(0, 1), v.flatten(0, 1)
    scaled = (q * dim**-0.5).reshape(rows * kv_heads, heads // kv_heads, count, dim)
    pieces = []
    for part, seen_by in zip(
        scaled.split(QUERIES_AT_ONCE, dim=2), positions.split(QUERIES_AT_ONCE, dim=1), strict=True
    ):
        seen = aligned(int(seen_by.max()) + 1)
        later = torch.arange(seen) > seen_by[:, None, :, None]  # [rows or 1, 1, queries, seen]
        bias = torch.zeros(later.shape).masked_fill_(later, float("-inf"))
        bias = bias.expand(rows, heads, -1, -1).reshape(rows * kv_heads, -1, seen)
        out, _ = attended(part.flatten(1, 2), k[:, :, :seen], v[:, :seen], bias)
        pieces.append(out.view(part.shape))
    out = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=2)
    return out.view(q.shape)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """[rows, heads, tokens, dim] and [rows, kv_heads, tokens, dim] -> [rows, heads, tokens, dim]."""
    if not ordered(q):
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if torch.is_grad_enabled() and q.requires_grad:
        out: Tensor = _OrderedCausal.apply(q, k, v)
        return out
    return _ordered_causal(q, k, v)


def _ordered_causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    count = q.shape[2]
    missing = aligned(count) - count
    keys, values = F.pad(k, (0, 0, 0, missing)).transpose(2, 3).contiguous(), F.pad(v, (0, 0, 0, missing))
    return in_order(q, keys, values, torch.arange(count)[None])


class _OrderedCausal(torch.autograd.Function):
    """Forward in order; the way back, on whose last bits nothing depends, by the fused kernel, which keeps
    no probabilities."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return _ordered_causal(q, k, v)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
            keys, values = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
            out = F.scaled_dot_product_attention(q, keys, values, is_causal=True)
        return torch.autograd.grad(out, (q, k, v), gradients[0])


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """[rows, kv_heads, …] -> [rows, heads, …]: each key-value head serves a run of query heads."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


class PackedAttention:
    """Causal attention within each of several sequences laid end to end.

    The linear layers see no padding; only here are sequences set side by side. Padding stands on the right,
    where a causal query never looks, so no mask is needed.

    Attempts at one task open with the same prompt, and a causal state depends on nothing after it: where row
    r has `shared[r] = (leader, n)`, its first n tokens are not computed again but read from the leader's.
    Nor are those after row r's first `lengths_read[r]`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        shared: Sequence[tuple[int, int]] | None = None,
        lengths_read: Sequence[int] | None = None,
    ) -> None:
        self.device, self.rows, self.longest = device, len(lengths), max(lengths_read or lengths)
        self.keys = list(lengths_read or lengths)  # of each row
        common_of = [n for _, n in shared] if shared is not None else [0] * len(lengths)
        self.queries = [max(0, keys - n) for keys, n in zip(self.keys, common_of, strict=True)]
        # Found on the host, so that a GPU is not waited for between one micro-batch and the next.
        sizes = torch.tensor(lengths)
        starts = sizes.cumsum(0) - sizes
        row = torch.arange(self.rows).repeat_interleave(sizes)
        token = torch.arange(len(row))
        position = token - starts[row]
        source = token  # where each token's state is computed
        common = opening = torch.zeros_like(sizes)  # how much of a row it has in common with others
        leads = opening > 0
        if shared is not None:
            leader, common = torch.tensor(shared).T
            source = torch.where(position < common[row], starts[leader[row]] + position, token)
            while not torch.equal(source, further := source[source]):  # a leader may read another's
                source = further
            opening = common.scatter_reduce(0, leader, common, "amax")
            leads = opening > common
        last = torch.tensor(self.keys)
        there = position < last[row]
        computed = (source == token) & there
        self.kept = computed.nonzero()[:, 0]  # the tokens that `hidden` is to be given
        self.where = (computed.cumsum(0) - 1)[source]  # every token's place among them
        self.positions = sent(position[self.kept], device)
        self.even = len(self.kept) == self.rows * self.longest
        self._padded = row * self.longest + position  # every token's place where rows stand side by side
        self._seen = there  # the tokens that rows look back on
        # What rows have in common once, and of each of them what comes after it.
        self.spans = [Span(starts, opening, last)]
        if bool(leads.any()):
            self.spans.append(Span(starts[leads], common[leads], opening[leads]))
        self.short = device.type == "cpu" and self.longest <= LONGEST
        self.blocks: BlockAttention | None = None  # made when the first layer tells of its heads

    @cached_property
    def scatter(self) -> Tensor:
        return sent(self._padded[self.kept], self.device)

    @cached_property
    def gather(self) -> Tensor:
        found = torch.zeros(self.rows * self.longest, dtype=torch.int64)
        found[self._padded[self._seen]] = self.where[self._seen]
        return sent(found, self.device)

    @cached_property
    def read(self) -> Tensor:
        """The states that rows look back on, row after row."""
        return sent(self.where[self._seen], self.device)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.short and q.dtype == torch.float32:
            if self.blocks is None:
                self.blocks = BlockAttention(self.spans, self.where, q.shape[1], k.shape[1])
            return self.blocks(q, k, v)
        if kernels.usable(q):
            from toolwright.models.kernels.flash import attend_packed

            return attend_packed(q, k, v, self.packed)
        q, k, v = self._spread(q), self._spread(k), self._spread(v)
        out = causal(q, k, v).transpose(1, 2).flatten(0, 1)
        return out if self.even else out.index_select(0, self.scatter)

    @cached_property
    def packed(self) -> FlashAttention:
        """For the flash kernel, where nothing is padded. What a row shares with another stands before its own
        keys, and its queries are the last of it."""
        from toolwright.models.kernels.flash import FlashAttention, Layout

        layout = Layout.of(self.queries, self.keys, self.device)
        return FlashAttention(layout, None if sum(self.keys) == len(self.kept) else self.read)

    def _spread(self, x: Tensor) -> Tensor:
        wide = x if self.even else x.index_select(0, self.gather)
        return wide.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2)

    def together(self, x: Tensor) -> Tensor:
        """[tokens, heads, dim] -> [rows, longest, heads, dim]: whole sequences, where a model wants those."""
        return self._spread(x).transpose(1, 2)

    def apart(self, states: Tensor) -> Tensor:
        """[rows, longest, …] -> [tokens, …] of those that were given."""
        return states.flatten(0, 1).index_select(0, self.scatter)
