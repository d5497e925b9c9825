"""Attention as learner and engine both compute it, precise enough that their numbers agree.

On a CPU, float32 attention works in float64 inside and is rounded once at the end. Sums over keys are the one
place where the learner, which sees whole sequences, and the engine, which sees one token at a time, add up in
different orders; a trained network amplifies that difference a hundredfold. Rounded from float64 the results
are the same numbers, and the log-probabilities of both agree to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models.blocks import LONGEST, BlockAttention, Span


def working_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    return torch.float64 if device.type == "cpu" and dtype == torch.float32 else dtype


def attend(
    q: Tensor,  # [rows, heads, queries, dim]
    k: Tensor,  # [rows, heads, keys, dim]
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Softmax attention in the type of `q`."""
    work = working_type(q.dtype, q.device)
    if work == q.dtype:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    if causal and torch.is_grad_enabled() and q.requires_grad:
        out: Tensor = _PreciseCausal.apply(q, k, v)
        return out
    out = F.scaled_dot_product_attention(q.to(work), k.to(work), v.to(work), attn_mask=mask, is_causal=causal)
    return out.to(q.dtype)


class _PreciseCausal(torch.autograd.Function):
    """Forward in float64; the way back, on whose last bits nothing depends, in float32 at twice the speed."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        out = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            q, k, v = (x.detach().requires_grad_() for x in ctx.saved_tensors)
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
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
    Nor are those after row r's first `wanted[r]`.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        shared: Sequence[tuple[int, int]] | None = None,
        wanted: Sequence[int] | None = None,
    ) -> None:
        self.rows, self.longest = len(lengths), max(wanted or lengths)
        sizes = torch.tensor(lengths, device=device)
        starts = sizes.cumsum(0) - sizes
        row = torch.arange(self.rows, device=device).repeat_interleave(sizes)
        token = torch.arange(len(row), device=device)
        position = token - starts[row]
        source = token  # where each token's state is computed
        opening = torch.zeros_like(sizes)  # how much of a row it has in common with others
        leads = opening > 0
        if shared is not None:
            leader, common = torch.tensor(shared, device=device).T
            source = torch.where(position < common[row], starts[leader[row]] + position, token)
            opening = common.scatter_reduce(0, leader, common, "amax")
            leads = (opening > 0) & (common == 0)
        last = sizes if wanted is None else torch.tensor(wanted, device=device)
        computed = (source == token) & (position < last[row])
        self.kept = computed.nonzero()[:, 0]  # the tokens that `hidden` is to be given
        self.where = (computed.cumsum(0) - 1)[source]  # every token's place among them
        self.positions = position[self.kept]
        self.scatter = (row * self.longest + position)[self.kept]
        self.even = len(self.kept) == self.rows * self.longest
        self.gather = self.where.new_zeros(self.rows * self.longest)
        there = position < last[row]
        self.gather[(row * self.longest + position)[there]] = self.where[there]
        # What rows have in common once, and of each of them what comes after it.
        self.spans = [Span(starts, opening, last)]
        if bool(leads.any()):
            self.spans.append(Span(starts[leads], torch.zeros_like(starts[leads]), opening[leads]))
        self.short = device.type == "cpu" and self.longest <= LONGEST
        self.blocks: BlockAttention | None = None  # made when the first layer tells of its heads

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.short and q.dtype == torch.float32:
            if self.blocks is None:
                self.blocks = BlockAttention(self.spans, self.where, q.shape[1], k.shape[1])
            return self.blocks(q, k, v)
        q, k, v = self._spread(q), self._spread(k), self._spread(v)
        k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
        out = attend(q, k, v, causal=True).transpose(1, 2).flatten(0, 1)
        return out if self.even else out.index_select(0, self.scatter)

    def _spread(self, x: Tensor) -> Tensor:
        wide = x if self.even else x.index_select(0, self.gather)
        return wide.view(self.rows, self.longest, *x.shape[1:]).transpose(1, 2)

    def together(self, x: Tensor) -> Tensor:
        """[tokens, heads, dim] -> [rows, longest, heads, dim]: whole sequences, where a model wants those."""
        return self._spread(x).transpose(1, 2)

    def apart(self, states: Tensor) -> Tensor:
        """[rows, longest, …] -> [tokens, …] of those that were given."""
        return states.flatten(0, 1).index_select(0, self.scatter)
