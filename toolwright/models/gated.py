"""SwiGLU, with a way back that writes both halves where they are wanted."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models import kernels


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, [tokens, 2 · ffn] -> [tokens, ffn]."""
    learning = torch.is_grad_enabled() and gate_up.requires_grad
    if kernels.usable(gate_up) and not learning:
        from toolwright.models.kernels import gated

        return gated.swiglu(gate_up)
    if learning:
        out: Tensor = _SwiGLU.apply(gate_up)
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        active = F.silu(gate)
        ctx.save_for_backward(gate_up, active)
        return active * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gate_up, active = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        of_gate, of_up = out.chunk(2, dim=-1)
        torch.mul(gradients[0], active, out=of_up)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=of_gate)
        return out
