"""Attention as learner and engine both compute it, in one order, so that their numbers agree.

Sums over keys are the one place where the learner, which sees whole sequences, and the engine, which sees one
token at a time, would add up in different orders; a trained network amplifies that difference a hundredfold.
On a CPU, in float32, both therefore take the steps of `in_order`, and agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.batch import sent
from toolwright.models import kernels
from toolwright.models.products import batched

if TYPE_CHECKING:
    from toolwright.models.kernels.flash import FlashAttention

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
