"""One layer of the decoder as a function of its weights: what learner and engine both compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from toolwright.models import kernels
from toolwright.models.elementwise import rms_norm, rotated, swiglu
from toolwright.models.experts import ExpertShape, Route, likeliest, mixture
from toolwright.models.products import PackedMatrix, linear

if TYPE_CHECKING:
    from toolwright.models.tensor_group import TensorGroup

# (layer, q [tokens, heads, dim], k [tokens, kv_heads, dim], v) -> [tokens, heads, dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class LayerWeights(NamedTuple):
    """Matrices as [in, out]: views of the parameters, or laid out once for many passes."""

    attention_norm: Tensor
    qkv: Tensor | PackedMatrix
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: applied to queries and keys in one go
    out: Tensor | PackedMatrix
    ffn_norm: Tensor
    gate_up: Tensor | PackedMatrix | Sequence[PackedMatrix]  # of experts: [experts, in, out], or of each
    down: Tensor | PackedMatrix | Sequence[PackedMatrix]
    heads: int
    kv_heads: int
    norm_eps: float
    tensor: TensorGroup | None = None  # the ranks whose parts of the matrices make them up
    router: Tensor | PackedMatrix | None = None
    experts: ExpertShape | None = None


# (layer, queries, keys and values as one product gives them, weights, turn) -> what `Attend` is given
Split = Callable[[int, Tensor, LayerWeights, Tensor], tuple[Tensor, Tensor, Tensor]]


def split_heads(index: int, flat: Tensor, w: LayerWeights, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Heads apart; queries and keys normalised where the model does that, and turned."""
    if kernels.usable(flat) and not (torch.is_grad_enabled() and flat.requires_grad):
        from toolwright.models.kernels import heads

        return heads.split_heads(flat, w.qk_norm, w.norm_eps, turn, w.heads, w.kv_heads)
    count = w.heads + 2 * w.kv_heads
    qkv = flat.view(len(flat), count, flat.shape[1] // count)
    qk, v = qkv.split_with_sizes((w.heads + w.kv_heads, w.kv_heads), dim=1)
    if w.qk_norm is not None:
        qk = rms_norm(qk, w.qk_norm, w.norm_eps)
    q, k = rotated(qk, turn).to(v.dtype).split_with_sizes((w.heads, w.kv_heads), dim=1)
    return q, k, v


def layer(
    index: int,
    x: Tensor,
    w: LayerWeights,
    turn: Tensor,
    attend: Attend,
    split: Split = split_heads,
    route: Route = likeliest,
) -> Tensor:
    """[tokens, width] -> [tokens, width]; `turn` is [tokens, 1, head_dim / 2], see `rotated`."""
    return feed_forward(attention(index, x, w, turn, attend, split), w, index, route)


def attention(
    index: int, x: Tensor, w: LayerWeights, turn: Tensor, attend: Attend, split: Split = split_heads
) -> Tensor:
    """The first half of a layer."""
    h = _normed(x, w.attention_norm, w)
    flat = linear(h, w.qkv, w.qkv_bias)
    q, k, v = split(index, flat, w, turn)
    return _added(x, attend(index, q, k, v).flatten(1), w.out, w.tensor)


def feed_forward(x: Tensor, w: LayerWeights, index: int = 0, route: Route = likeliest) -> Tensor:
    """The second half of a layer, for each token by itself."""
    h = _normed(x, w.ffn_norm, w)
    if w.router is not None:
        return x + experts_of(h, w, index, route)
    assert isinstance(w.gate_up, Tensor | PackedMatrix)
    assert isinstance(w.down, Tensor | PackedMatrix)
    return _added(x, swiglu(linear(h, w.gate_up)), w.down, w.tensor)


def experts_of(h: Tensor, w: LayerWeights, index: int, route: Route = likeliest) -> Tensor:
    """Apply a layer's experts to normalised states."""
    assert w.router is not None
    assert w.experts is not None
    assert not isinstance(w.gate_up, PackedMatrix)
    assert not isinstance(w.down, PackedMatrix)
    return mixture(h, w.router, w.gate_up, w.down, w.experts, layer=index, route=route)


def _normed(x: Tensor, norm: Tensor, w: LayerWeights) -> Tensor:
    h = rms_norm(x, norm, w.norm_eps)
    return h if w.tensor is None else w.tensor.copied(h)


def _added(x: Tensor, y: Tensor, weight: Tensor | PackedMatrix, tensor: TensorGroup | None) -> Tensor:
    """x + y · weight, into x where that is the engine's own: a copy takes as long as a small product."""
    if tensor is not None:
        return x + tensor.summed(linear(y, weight))
    if (
        isinstance(weight, Tensor)
        and x.is_cuda
        and x.dtype == y.dtype == weight.dtype
        and not torch.is_grad_enabled()
    ):
        return x.addmm_(y, weight)
    return linear(y, weight, x)
