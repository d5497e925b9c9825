"""Sequence parallelism (Ulysses, arXiv 2309.14509): ranks divide the tokens of a pass among themselves.

Every layer works on a rank's own tokens, but for attention: there each rank has all tokens of some heads. One
exchange before it and one after it swap tokens for heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.layer import Attend


class SequenceGroup:
    """The ranks that compute one pass together, each its own tokens of it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def counts(self, tokens: int) -> list[int]:
        """Count the tokens of a pass on each rank: nearly the same number, one after the other."""
        return [tokens * (rank + 1) // self.size - tokens * rank // self.size for rank in range(self.size)]

    def own(self, tokens: int) -> slice:
        return slice(tokens * self.rank // self.size, tokens * (self.rank + 1) // self.size)

    def attention(self, attend: Attend, tokens: int) -> Attend:
        """`attend` over all of a pass's tokens, for queries, keys and values of this rank's own."""
        return SplitAttention(attend, self, self.counts(tokens))

    def joined(self, values: Tensor, places: Tensor, count: int) -> Tensor:
        """[count, …] on every rank, from what each has at its places. A rank's gradient is that of its own:
        all of them go on with the same."""
        found: Tensor = _Joined.apply(values, places, count, self.group)
        return found

    def divide(self, decoder: Decoder) -> None:
        """Make the decoder's passes those of this group."""
        if not decoder.fast and not decoder.exact:
            raise UserError(
                f"this {decoder.shape.family} model computes attention by itself and needs whole sequences: "
                "leave sequence out of runtime.placement.policy.ranks"
            )
        check(decoder.shape, self.size, tensor=1 if decoder.tensor is None else decoder.tensor.size)
        decoder.sequence = self


def check(shape: Shape, size: int, *, tensor: int = 1) -> None:
    """Raise a UserError if the heads cannot be divided among so many ranks, each split by `tensor`."""
    heads, kv_heads = shape.heads // tensor, shape.kv_heads // tensor
    if heads % size or (kv_heads % size and size % kv_heads):
        raise UserError(
            f"runtime.placement.policy.ranks.sequence={size} does not go with heads={heads} and "
            f"kv_heads={kv_heads} on a rank: choose a divisor of the heads that also divides kv_heads, or "
            "is a multiple of it"
        )


class SplitAttention:
    """Attention among all tokens of a pass, called with some of them."""

    def __init__(self, attend: Attend, sequence: SequenceGroup, counts: Sequence[int]) -> None:
        self.attend, self.sequence, self.counts = attend, sequence, list(counts)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks, (own, heads, dim) = self.sequence.size, q.shape
        if k.shape[1] % ranks:  # fewer than ranks: those with the same queries' keys have them twice
            k, v = (x.repeat_interleave(ranks // x.shape[1], dim=1) for x in (k, v))
        apart = [x.reshape(own, ranks, x.shape[1] // ranks, dim) for x in (q, k, v)]
        mine = self._exchanged(torch.cat(apart, dim=2), to_heads=True)
        gathered = self.attend(layer, *mine.split([x.shape[2] for x in apart], dim=1))
        return self._exchanged(gathered, to_heads=False).reshape(own, heads, dim)

    def _exchanged(self, x: Tensor, *, to_heads: bool) -> Tensor:
        out: Tensor = _Exchange.apply(x, self, to_heads)
        return out

    def to_heads(self, x: Tensor) -> Tensor:
        """[own tokens, ranks, heads of each, dim] -> [all tokens, own heads, dim]"""
        given = x.transpose(0, 1).contiguous()
        out = x.new_empty(sum(self.counts), *x.shape[2:])
        sent = [x.shape[0]] * self.sequence.size
        dist.all_to_all_single(out, given.flatten(0, 1), self.counts, sent, group=self.sequence.group)
        return out

    def to_tokens(self, x: Tensor) -> Tensor:
        """The way back of that."""
        own, ranks = self.counts[self.sequence.rank], self.sequence.size
        out = x.new_empty(ranks * own, *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), [own] * ranks, self.counts, group=self.sequence.group)
        return out.view(ranks, own, *x.shape[1:]).transpose(0, 1).contiguous()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, split: SplitAttention, to_heads: bool) -> Tensor:
        ctx.split, ctx.to_heads = split, to_heads
        return split.to_heads(x) if to_heads else split.to_tokens(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        back = ctx.split.to_tokens if ctx.to_heads else ctx.split.to_heads
        return back(gradients[0]), None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places)
        whole = values.new_zeros(count, *values.shape[1:]).index_copy_(0, places, values)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None, None
