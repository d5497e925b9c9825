"""Norm, gate and rotary positions: what a layer does number by number, with ways back written by hand.

Of a head, the numbers that turn together lie side by side, so that a turn is one complex product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models import kernels

if TYPE_CHECKING:
    from toolwright.models.decoder import Shape


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


# `dynamic` stretches only beyond the context that a model was made for, and nothing is that long here.
ROPE_KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


def turns(shape: Shape) -> Tensor:
    """exp(i · position · frequency), [context, head_dim / 2]; yarn makes it longer or shorter than 1."""
    pair = torch.arange(0, shape.head_dim, 2, dtype=torch.float64)
    frequency = shape.rope_theta ** -(pair / shape.head_dim)
    length, scaling = 1.0, shape.rope_scaling or {}
    kind = scaling.get("rope_type", "default")
    if kind == "linear":
        frequency = frequency / scaling["factor"]
    elif kind == "llama3":
        frequency = _llama3(frequency, scaling)
    elif kind == "yarn":
        frequency, length = _yarn(frequency, shape.rope_theta, scaling)
    angle = torch.outer(torch.arange(shape.context, dtype=torch.float64), frequency)
    return torch.polar(torch.full_like(angle, length), angle).to(torch.complex64)


def _llama3(frequency: Tensor, scaling: Mapping[str, Any]) -> Tensor:
    """Llama 3.1: keep high frequencies, divide low ones by the factor, and blend in between."""
    wavelength = 2 * math.pi / frequency
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = (scaling["original_max_position_embeddings"] / wavelength - low) / (high - low)
    blend = blend.clamp(0, 1)
    return (1 - blend) * frequency / scaling["factor"] + blend * frequency


def _yarn(frequency: Tensor, theta: float, scaling: Mapping[str, Any]) -> tuple[Tensor, float]:
    """arXiv 2309.00071: as llama3, the blend linear in the pair's number between those that turn `beta_fast`
    and `beta_slow` times over the original context; queries and keys are lengthened besides."""
    pairs, factor = len(frequency), scaling["factor"]
    original = scaling["original_max_position_embeddings"]

    def number(rotations: float) -> float:
        """The index of the pair that makes this many rotations over the original context."""
        return pairs * math.log(original / (rotations * 2 * math.pi)) / math.log(theta)

    low, high = number(scaling.get("beta_fast") or 32), number(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    if low == high:
        high += 0.001
    divided = ((torch.arange(pairs, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return frequency * (divided / factor + 1 - divided), _yarn_length(factor, scaling)


def _yarn_length(factor: float, scaling: Mapping[str, Any]) -> float:
    def of(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)
    scale, over = scaling.get("mscale"), scaling.get("mscale_all_dim")
    return of(scale) / of(over) if scale and over else of(1.0)
