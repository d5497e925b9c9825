"""Root-mean-square norm: torch's own where it is one kernel, fewer and smaller steps where it is not."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models import kernels


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean(x²) + ε) · weight over the last dimension; `weight` may have more than that one."""
    if kernels.usable(x) and weight.dim() == 1:
        from toolwright.models.kernels import norm

        return norm.rms_norm(x, weight, eps)
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, (x.shape[-1],), None, eps) * weight
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        out: Tensor = _RMSNorm.apply(x, weight, eps)
        return out
    return (x / _length(x, eps)).mul_(gain(weight))


def gain(weight: Tensor) -> Tensor:
    """x / √(mean(x²) + ε) = √d x / √(‖x‖² + dε): the root goes with the weight, which is smaller than x."""
    return weight * weight.shape[-1] ** 0.5


@lru_cache
def floor(size: int, eps: float) -> Tensor:
    """√(dε), which a length's hypotenuse is taken with."""
    return torch.tensor((size * eps) ** 0.5)


def _length(x: Tensor, eps: float) -> Tensor:
    """√(‖x‖² + dε) in two kernels."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(floor(x.shape[-1], eps))


class _RMSNorm(torch.autograd.Function):
    """With u = x / length:  ∂x = (ĝ − u Σ ĝ u) / length  where ĝ = g · gain, and ∂weight = √d Σ g u."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        length, scale = _length(x, eps), gain(weight)
        unit = x / length
        ctx.save_for_backward(unit, length, scale)
        return unit * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, length, scale = ctx.saved_tensors
        gradient = gradients[0]
        product = gradient * unit
        of_weight = gain(product.flatten(0, -scale.dim() - 1).sum(0))
        if scale.dim() == 1 and product.dim() == 2:
            along = product.mv(scale)[:, None]
        else:
            along = product.mul_(scale).sum(-1, keepdim=True)
        of_x = torch.mul(gradient, scale, out=product).addcmul_(unit, along, value=-1)
        return of_x.mul_(length.reciprocal()), of_weight, None
