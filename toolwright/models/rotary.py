"""Rotary positions: x cos + roll(x, half) sin, which is its own way back with cos and sin swapped round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[tokens, heads, dim] turned by its tokens' positions; `sin` carries the sign of its half."""
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = _Rotation.apply(x, cos, sin)
        return out
    return torch.addcmul(x * cos, _swapped(x), sin)


def _swapped(x: Tensor) -> Tensor:
    """The two halves of the last dimension, each in the other's place."""
    one, other = x.chunk(2, dim=-1)
    return torch.cat((other, one), dim=-1)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return torch.addcmul(x * cos, _swapped(x), sin)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        gradient = gradients[0]
        return torch.addcmul(_swapped(gradient * sin), gradient, cos).to(ctx.dtype), None, None
