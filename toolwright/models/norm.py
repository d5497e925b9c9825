"""Root-mean-square norm: torch's own where it is one kernel, fewer and smaller steps where it is not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright import kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) · weight over the last dimension; `weight` may have more than that one."""
    if kernels.usable(x) and weight.dim() == 1:
        from toolwright.kernels import norm

        return norm.rms_norm(x, weight, eps)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), None, eps) * weight
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out: Tensor = _RMSNorm.apply(x, weight, eps)
        return out
    return (x / _rms(x, eps)).mul_(weight)


def _rms(x: Tensor, eps: float) -> Tensor:
    """√(mean(x²) + ε) as hypot(‖x‖, √(dε)) / √d: two kernels instead of five."""
    size = x.shape[-1]
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.hypot(length, _constant((size * eps) ** 0.5)).mul_(size**-0.5)


@lru_cache
def _constant(value: float) -> Tensor:
    return torch.tensor(value)


class _RMSNorm(torch.autograd.Function):
    """With x̂ = x / rms:  ∂x = (ĝ − x̂ mean(ĝ x̂)) / rms  where ĝ = g · weight, and ∂weight = Σ g x̂."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rms = _rms(x, eps)
        scaled = x / rms
        ctx.save_for_backward(scaled, rms, weight)
        return scaled * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        scaled, rms, weight = ctx.saved_tensors
        gradient = gradients[0]
        product = gradient * scaled
        of_weight = product.flatten(0, -weight.dim() - 1).sum(0)
        if weight.dim() == 1 and product.dim() == 2:
            along = product.mv(weight / -len(weight))[:, None]
        else:
            along = product.mul_(weight).mean(-1, keepdim=True).neg_()
        return (gradient * weight).addcmul_(scaled, along).div_(rms), of_weight, None
