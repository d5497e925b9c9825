"""Rotary positions. Numbers that turn together lie side by side, so that a turn is one complex product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rotated(x: Tensor, turn: Tensor) -> Tensor:
    """[tokens, heads, dim] by its tokens' `turn`, [tokens, 1, dim / 2] complex; float32 in any precision."""
    if torch.is_grad_enabled() and x.requires_grad:
        out: Tensor = _Rotation.apply(x, turn)
        return out
    return (x.float().view(torch.complex64) * turn).view(torch.float32)


class _Rotation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, turn: Tensor) -> Tensor:
        ctx.save_for_backward(turn)
        ctx.dtype = x.dtype
        return (x.float().view(torch.complex64) * turn).view(torch.float32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Turned back."""
        (turn,) = ctx.saved_tensors
        back = gradients[0].contiguous().view(torch.complex64) * turn.conj_physical()
        return back.view(torch.float32).to(ctx.dtype), None
