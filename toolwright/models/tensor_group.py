"""The ranks that hold parts of the same matrices: what they sum on the way there and on the way back."""

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
