"""One layer of the decoder as a function of its weights: what learner and engine both compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from toolwright.models.gated import swiglu
from toolwright.models.norm import rms_norm
from toolwright.models.rotary import rotated

# (layer, q [tokens, heads, dim], k [tokens, kv_heads, dim], v) -> [tokens, heads, dim]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


class LayerWeights(NamedTuple):
    """Matrices as [in, out]: views of the parameters in the learner, in the engine laid out that way."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]: applied to queries and keys in one go
    out: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    down: Tensor
    heads: int
    kv_heads: int
    norm_eps: float


def layer(index: int, x: Tensor, w: LayerWeights, turn: Tensor, attend: Attend) -> Tensor:
    """[tokens, width] -> [tokens, width]; `turn` is [tokens, 1, head_dim / 2], see `rotated`."""
    h = rms_norm(x, w.attention_norm, w.norm_eps)
    flat = torch.mm(h, w.qkv) if w.qkv_bias is None else torch.addmm(w.qkv_bias, h, w.qkv)
    qkv = flat.view(len(x), w.heads + 2 * w.kv_heads, -1)
    qk, v = qkv.split_with_sizes((w.heads + w.kv_heads, w.kv_heads), dim=1)
    if w.qk_norm is not None:
        qk = rms_norm(qk, w.qk_norm, w.norm_eps)
    q, k = rotated(qk, turn).to(v.dtype).split_with_sizes((w.heads, w.kv_heads), dim=1)
    x = torch.addmm(x, attend(index, q, k, v).flatten(1), w.out)
    h = rms_norm(x, w.ffn_norm, w.norm_eps)
    return torch.addmm(x, swiglu(torch.mm(h, w.gate_up)), w.down)
