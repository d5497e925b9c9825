"""The engine's pass over a token a row on a CPU: what `Decoder.hidden` and `head` do, written in place.

For a small model a pass is some hundred small kernels, and half of what each takes goes into making its
result and the views of it. Here they are made once. Every kernel does what its counterpart in
`models/layer.py` does, in the same order, so the numbers are the learner's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.models.decoder import Decoder, Shape, Weights
from toolwright.models.layer import Attend, LayerWeights
from toolwright.models.norm import floor, gain

silu: Any = torch._C._nn.silu  # torch.nn.functional has no form that writes elsewhere

# Numbers of a matrix that stays in a cache near the processor from one pass to the next. A larger one comes
# from memory, as fast in the learner's order as in any other.
LARGEST_LAID_OUT = 1 << 22


class LaidOut:
    """Matrices of one publication in the order that products of few rows read them in, at up to twice the
    speed. Written where those of the last publication were: new memory takes as long as the copy."""

    def __init__(self, room: list[Tensor]) -> None:
        self.room, self.used = room, 0

    def __call__(self, weight: Tensor) -> Tensor:
        """[out, in] -> [in, out]"""
        if weight.numel() > LARGEST_LAID_OUT:
            return weight.t()
        if self.used == len(self.room):
            self.room.append(weight.new_empty(weight.shape[::-1]))
        self.used += 1
        return self.room[self.used - 1].copy_(weight.t())


def kept(shape: Shape, *, laid_out: bool, adapted: bool) -> int:
    """Numbers of a model's matrices that an engine holds beside the model: those that are `laid_out`, and, of
    a model with an adapter, the sum of each matrix with what is added to it."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    of_a_layer = [(q + 2 * kv) * shape.width, q * shape.width, 2 * shape.ffn * shape.width]
    of_a_layer.append(shape.ffn * shape.width)
    found = shape.layers * sum(n for n in of_a_layer if adapted or (laid_out and n <= LARGEST_LAID_OUT))
    head = shape.vocab * shape.width
    return found + (head if laid_out and head <= LARGEST_LAID_OUT else 0)


class Norm:
    """The norm of a buffer, written to another, or where it is."""

    def __init__(self, source: Tensor, target: Tensor, eps: float) -> None:
        self.source, self.target = source, target
        self.length = torch.empty(*source.shape[:-1], 1)
        self.floor = floor(source.shape[-1], eps)

    def __call__(self, gain: Tensor) -> Tensor:
        torch.linalg.vector_norm(self.source, dim=-1, keepdim=True, out=self.length)
        return torch.div(self.source, self.length.hypot_(self.floor), out=self.target).mul_(gain)


class Workspace:
    """The states of `rows` tokens on their way through a layer, and the views of them that kernels take."""

    def __init__(self, shape: Shape, rows: int) -> None:
        heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
        self.x, normed = torch.empty(rows, shape.width), torch.empty(rows, shape.width)
        self.norm = Norm(self.x, normed, shape.norm_eps)
        self.qkv = torch.empty(rows, (heads + 2 * kv_heads) * dim)
        qk, self.v = self.qkv.view(rows, -1, dim).split((heads + kv_heads, kv_heads), dim=1)
        self.qk_norm = Norm(qk, qk, shape.norm_eps)
        self.turning = qk.view(torch.complex64)
        self.q, self.k = qk.split((heads, kv_heads), dim=1)
        self.gate_up, self.active = torch.empty(rows, 2 * shape.ffn), torch.empty(rows, shape.ffn)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)


class Gains(NamedTuple):
    """Of a layer's norms, made once a publication."""

    attention: Tensor
    qk: Tensor | None
    ffn: Tensor

    @classmethod
    def of(cls, w: LayerWeights) -> Gains:
        qk = None if w.qk_norm is None else gain(w.qk_norm)
        return cls(gain(w.attention_norm), qk, gain(w.ffn_norm))


class InPlace:
    """A decoder with one publication's weights, and a workspace for each number of rows."""

    def __init__(self, decoder: Decoder, weights: Weights) -> None:
        self.decoder, self.weights = decoder, weights
        self.gains = [Gains.of(one) for one in weights.layers]
        self.gain = gain(weights.norm)
        self.spaces: dict[int, Workspace] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens], [tokens] -> logits [tokens, vocab]."""
        weights, rows = self.weights, len(tokens)
        space = self.spaces.get(rows)
        if space is None:
            space = self.spaces[rows] = Workspace(self.decoder.shape, rows)
        states, turn = self.decoder.entered(tokens, positions, weights.embedding)
        x = space.x.copy_(states)
        for index, (w, gains) in enumerate(zip(weights.layers, self.gains, strict=True)):
            h = space.norm(gains.attention)
            if w.qkv_bias is None:
                torch.mm(h, w.qkv, out=space.qkv)
            else:
                torch.addmm(w.qkv_bias, h, w.qkv, out=space.qkv)
            if gains.qk is not None:
                space.qk_norm(gains.qk)
            space.turning.mul_(turn)
            x.addmm_(attend(index, space.q, space.k, space.v).view(rows, -1), w.out)
            torch.mm(space.norm(gains.ffn), w.gate_up, out=space.gate_up)
            silu(space.gate, out=space.active)
            x.addmm_(space.active.mul_(space.up), w.down)
        return torch.mm(space.norm(self.gain), weights.unembedding)
