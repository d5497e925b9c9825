"""The ranks that hold parts of the same matrices: what they sum on the way there and on the way back.

Of the vocabulary each holds some rows: embeddings, and what logits say of the tokens chosen, are sums too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class TensorGroup:
    """The ranks that hold one copy of the model together. All of them compute the same tokens."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def copied(self, x: Tensor) -> Tensor:
        """What all ranks have, as it goes into what is a rank's own: its gradient is the sum of theirs."""
        out: Tensor = _Copied.apply(x, self.group)
        return out

    def summed(self, x: Tensor) -> Tensor:
        """The sum of what the ranks have, on all of them."""
        out: Tensor = _Summed.apply(x, self.group)
        return out

    def places(self, sizes: Sequence[int]) -> Tensor:
        """This rank's indices in several blocks of these sizes, laid end to end."""
        found, start = [], 0
        for size in sizes:
            first, last = (start + size * rank // self.size for rank in (self.rank, self.rank + 1))
            found.append(torch.arange(first, last))
            start += size
        return torch.cat(found)


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        whole = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=ctx.group)
        return whole, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        whole = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


def embedded(table: Tensor, tokens: Tensor, first: int, group: TensorGroup) -> Tensor:
    """[tokens, width]; `table` has the rows of the tokens from `first` on."""
    place, absent = _own(tokens, first, len(table))
    return group.summed(torch.embedding(table, place).masked_fill(absent[:, None], 0.0))


def likelihood(
    logits: Tensor, target: Tensor, first: int, group: TensorGroup
) -> tuple[Tensor, Tensor, Tensor]:
    """[rows] each: log π(target), the entropy and Σ π² of the softmax over all ranks' logits, of which these
    are the ones from `first` on."""
    found: tuple[Tensor, Tensor, Tensor] = _Likelihood.apply(logits, target, first, group)
    return found


def _own(tokens: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Each token's place among the rank's own, and whether it has none there."""
    place = tokens - first
    absent = (place < 0) | (place >= count)
    return place.masked_fill(absent, 0), absent


class _Likelihood(torch.autograd.Function):
    """∂logits = g (1[target] − π) − h π (log π + H), for gradients g of log π(target) and h of the entropy H:
    each rank computes its own columns."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, target: Tensor, first: int, group: TensorGroup
    ) -> tuple[Tensor, ...]:
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=group.group)
        away = logits - highest[:, None]
        weight = away.exp()
        place, absent = _own(target, first, logits.shape[1])
        chosen = away.gather(1, place[:, None])[:, 0].masked_fill(absent, 0.0)
        sums = torch.stack([weight.sum(-1), (weight * away).sum(-1), weight.square().sum(-1), chosen])
        dist.all_reduce(sums, group=group.group)
        total, along, squares, chosen = sums
        log_total = total.log()
        entropy = log_total - along / total
        log_every = away.sub_(log_total[:, None])
        ctx.save_for_backward(log_every, entropy, place, absent)
        square = squares / total.square()
        ctx.mark_non_differentiable(square)
        return chosen - log_total, entropy, square

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        log_every, entropy, place, absent = ctx.saved_tensors
        of_chosen, of_entropy = gradients[0][:, None], gradients[1][:, None]
        every = log_every.exp()
        back = every * -(of_chosen + of_entropy * (log_every + entropy[:, None]))
        back.scatter_add_(1, place[:, None], of_chosen.masked_fill(absent[:, None], 0.0))
        return back, None, None, None
