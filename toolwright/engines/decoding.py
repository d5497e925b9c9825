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

# Products with a matrix laid out as here add up in the learner's order however few the rows are, with AVX-512
# from two on; as the learner has it, from sixteen on.
ROWS_AT_LEAST = 4
# Numbers of a matrix that stays in a cache near the processor from one pass to the next. A larger one is cut.
LARGEST_LAID_OUT = 1 << 18
COLUMNS, COLUMNS_AT_LEAST = 128, 32  # of a panel


class LaidOut:
    """Matrices of one publication in the order that products of few rows read them in.

    That is [in, out]; of a large one panels of neighbouring columns, [panels, in, columns], each of them a
    product by itself. It is then read once from end to end, which takes two thirds of the time that the same
    matrix takes whole. Written where those of the last publication were: new memory takes as long as the
    copy."""

    def __init__(self, room: list[Tensor]) -> None:
        self.room, self.used = room, 0

    def __call__(self, weight: Tensor) -> Tensor:
        """Of [in, out] in any order."""
        columns = _columns(weight)
        cut = weight if columns is None else weight.unflatten(1, (-1, columns)).transpose(0, 1)
        if self.used == len(self.room):
            self.room.append(torch.empty(cut.shape))
        self.used += 1
        return self.room[self.used - 1].copy_(cut)


def _columns(weight: Tensor) -> int | None:
    """Of a panel, if the matrix is large and can be cut evenly."""
    if weight.numel() <= LARGEST_LAID_OUT:
        return None
    sizes = range(COLUMNS, COLUMNS_AT_LEAST - 1, -16)
    return next((size for size in sizes if weight.shape[1] % size == 0), None)


class Result:
    """A buffer [rows, out] for products with a matrix that is laid out, and the same in its panels."""

    def __init__(self, whole: Tensor, matrix: Tensor) -> None:
        self.whole = whole
        self.panels: Tensor | None = None
        if matrix.dim() == 3:
            self.cut = whole.unflatten(1, (len(matrix), -1)).transpose(0, 1)
            self.panels = torch.empty(self.cut.shape)

    def put(self, x: Tensor, matrix: Tensor) -> Tensor:
        if self.panels is None:
            return torch.mm(x, matrix, out=self.whole)
        torch.bmm(x.expand(len(matrix), -1, -1), matrix, out=self.panels)
        self.cut.copy_(self.panels)
        return self.whole

    def add(self, x: Tensor, matrix: Tensor) -> None:
        if self.panels is None:
            self.whole.addmm_(x, matrix)
            return
        self.panels.copy_(self.cut).baddbmm_(x.expand(len(matrix), -1, -1), matrix)
        self.cut.copy_(self.panels)


def kept(shape: Shape, *, laid_out: bool, adapted: bool) -> int:
    """Numbers of a model's matrices that an engine holds beside the model: all of them where they are
    `laid_out`, and, of a model with an adapter, the sum of each matrix with what is added to it."""
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    of_a_layer = (2 * q + 2 * kv + 3 * shape.ffn) * shape.width
    return shape.layers * of_a_layer * (laid_out + adapted) + shape.vocab * shape.width * laid_out


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

    def __init__(self, shape: Shape, rows: int, w: LayerWeights) -> None:
        heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
        self.x, normed = torch.empty(rows, shape.width), torch.empty(rows, shape.width)
        self.norm = Norm(self.x, normed, shape.norm_eps)
        self.attended, self.fed = Result(self.x, w.out), Result(self.x, w.down)
        self.qkv = torch.empty(rows, (heads + 2 * kv_heads) * dim)
        qk, self.v = self.qkv.view(rows, -1, dim).split((heads + kv_heads, kv_heads), dim=1)
        self.qk_norm = Norm(qk, qk, shape.norm_eps)
        self.turning = qk.view(torch.complex64)
        self.q, self.k = qk.split((heads, kv_heads), dim=1)
        self.gate_up, self.active = torch.empty(rows, 2 * shape.ffn), torch.empty(rows, shape.ffn)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)
        self.heads, self.gates = Result(self.qkv, w.qkv), Result(self.gate_up, w.gate_up)


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
    """A decoder with one publication's weights, laid out, and a workspace for each number of rows."""

    def __init__(self, decoder: Decoder, weights: Weights, room: list[Tensor]) -> None:
        self.decoder, self.embedding = decoder, weights.embedding
        lay = LaidOut(room)
        self.layers = [
            w._replace(qkv=lay(w.qkv), out=lay(w.out), gate_up=lay(w.gate_up), down=lay(w.down))
            for w in weights.layers
        ]
        self.unembedding = lay(weights.unembedding)
        self.gains = [Gains.of(one) for one in weights.layers]
        self.gain = gain(weights.norm)
        self.spaces: dict[int, Workspace] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens], [tokens] -> logits [tokens, vocab]."""
        rows = len(tokens)
        space = self.spaces.get(rows)
        if space is None:
            space = self.spaces[rows] = Workspace(self.decoder.shape, rows, self.layers[0])
        states, turn = self.decoder.entered(tokens, positions, self.embedding)
        space.x.copy_(states)
        for index, (w, gains) in enumerate(zip(self.layers, self.gains, strict=True)):
            h = space.norm(gains.attention)
            if w.qkv_bias is None:
                space.heads.put(h, w.qkv)
            else:
                space.qkv.copy_(w.qkv_bias)
                space.heads.add(h, w.qkv)
            if gains.qk is not None:
                space.qk_norm(gains.qk)
            space.turning.mul_(turn)
            space.attended.add(attend(index, space.q, space.k, space.v).view(rows, -1), w.out)
            space.gates.put(space.norm(gains.ffn), w.gate_up)
            silu(space.gate, out=space.active)
            space.fed.add(space.active.mul_(space.up), w.down)
        logits = torch.empty(rows, self.decoder.shape.vocab)
        return Result(logits, self.unembedding).put(space.norm(self.gain), self.unembedding)
