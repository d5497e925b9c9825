"""The engine's pass over a token a row on a CPU: what `Decoder.hidden` and `head` do, written in place.

For a small model a pass is some hundred small kernels, and half of what each takes goes into making its
result and the views of it. Here they are made once. Every kernel does what its counterpart in
`models/layer.py` does, in the same order, so the numbers are the learner's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolwright.engines import Sampling
from toolwright.engines.native.cache import SlotCache
from toolwright.engines.native.paged_cache import PagedCache
from toolwright.engines.native.sampler import Sampler
from toolwright.models.decoder import Decoder, DecoderWeights, Shape
from toolwright.models.elementwise import floor, gain
from toolwright.models.layer import Attend, LayerWeights, experts_of
from toolwright.models.products import PackedMatrix, PreparedProduct, linear

silu: Any = torch._C._nn.silu  # torch.nn.functional has no form that writes elsewhere


class PackedWeights:
    """Lays out a decoder's matrices once a publication, where those of the last one were: new memory takes as
    long as the copy."""

    def __init__(self) -> None:
        self.rooms: list[Tensor] = []

    def __call__(self, decoder: Decoder) -> DecoderWeights:
        used = iter(range(len(self.rooms)))

        def lay(weight: Tensor) -> PackedMatrix:
            room = next(used, None)
            packed = PackedMatrix.of(weight, None if room is None else self.rooms[room])
            if room is None:
                self.rooms.append(packed.panels)
            return packed

        return decoder.weights(lay)


def kept(shape: Shape, *, panel: int | None, adapted: bool) -> int:
    """Numbers of a model's matrices that an engine holds beside the model: all of them where they are laid
    out in panels of so many columns; else, of a model with an adapter, the sum of each with what is added."""
    q, kv, width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim, shape.width
    attention, plain = [(q + 2 * kv, width), (width, q)], [(2 * shape.ffn, width), (width, shape.ffn)]
    dense, mixed = shape.layers, []
    if shape.experts is not None:  # which no adapter is of
        dense, ffn = len(shape.experts.dense), shape.experts.ffn
        each = shape.experts.count * [(2 * ffn, width), (width, ffn)]
        mixed = (shape.layers - dense) * [(shape.experts.count, width), *each]
    adaptable = shape.layers * attention + dense * plain
    if panel is None:
        return adapted * sum(columns * inner for columns, inner in adaptable)
    every = [*adaptable, *mixed, (shape.vocab, width)]
    return sum(-(-columns // panel) * panel * inner for columns, inner in every)


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
        self.x, self.normed = torch.empty(rows, shape.width), torch.empty(rows, shape.width)
        self.norm = Norm(self.x, self.normed, shape.norm_eps)
        self.attended = torch.empty(rows, heads * dim)
        self.qkv = torch.empty(rows, (heads + 2 * kv_heads) * dim)
        qk, self.v = self.qkv.view(rows, -1, dim).split((heads + kv_heads, kv_heads), dim=1)
        self.qk_norm = Norm(qk, qk, shape.norm_eps)
        self.turning = qk.view(torch.complex64)
        self.q, self.k = qk.split((heads, kv_heads), dim=1)
        self.gate_up, self.active = torch.empty(rows, 2 * shape.ffn), torch.empty(rows, shape.ffn)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)


class LayerProducts(NamedTuple):
    """The products of a layer between the buffers of a workspace; experts have theirs apart."""

    qkv: PreparedProduct
    out: PreparedProduct
    gate_up: PreparedProduct | None = None
    down: PreparedProduct | None = None

    @classmethod
    def between(cls, space: Workspace, w: LayerWeights) -> LayerProducts:
        matrices = (w.qkv, w.out, w.gate_up, w.down)
        qkv, out, *plain = (one for one in matrices if isinstance(one, PackedMatrix))
        first = cls(
            PreparedProduct(space.normed, qkv, space.qkv, add=w.qkv_bias is not None),
            PreparedProduct(space.attended, out, space.x, add=True),
        )
        if not plain:
            return first
        gate_up, down = plain
        return cls(
            *first[:2],
            PreparedProduct(space.normed, gate_up, space.gate_up),
            PreparedProduct(space.active, down, space.x, add=True),
        )


class Gains(NamedTuple):
    """The gains of a layer's norms, computed once for each publication."""

    attention: Tensor
    qk: Tensor | None
    ffn: Tensor

    @classmethod
    def of(cls, w: LayerWeights) -> Gains:
        qk = None if w.qk_norm is None else gain(w.qk_norm)
        return cls(gain(w.attention_norm), qk, gain(w.ffn_norm))


class InPlace:
    """A decoder with the weights of one publication in a fast layout, and a workspace for each number of
    rows."""

    def __init__(self, decoder: Decoder, weights: DecoderWeights) -> None:
        self.decoder, self.weights = decoder, weights
        self.gains = [Gains.of(one) for one in weights.layers]
        self.gain = gain(weights.norm)
        self.spaces: dict[int, tuple[Workspace, list[LayerProducts]]] = {}

    def __call__(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """[tokens], [tokens] -> logits [tokens, vocab]."""
        rows = len(tokens)
        if rows not in self.spaces:
            space = Workspace(self.decoder.shape, rows)
            self.spaces[rows] = space, [LayerProducts.between(space, w) for w in self.weights.layers]
        space, products = self.spaces[rows]
        states, turn = self.decoder.entered(tokens, positions, self.weights.embedding)
        space.x.copy_(states)
        for index, (w, gains, of_layer) in enumerate(
            zip(self.weights.layers, self.gains, products, strict=True)
        ):
            space.norm(gains.attention)
            if w.qkv_bias is not None:
                space.qkv.copy_(w.qkv_bias)
            of_layer.qkv()
            if gains.qk is not None:
                space.qk_norm(gains.qk)
            space.turning.mul_(turn)
            of_layer.out.of(attend(index, space.q, space.k, space.v).view(rows, -1))
            space.norm(gains.ffn)
            if of_layer.gate_up is None or of_layer.down is None:
                space.x.add_(experts_of(space.normed, w, index))
                continue
            of_layer.gate_up()
            silu(space.gate, out=space.active)
            space.active.mul_(space.up)
            of_layer.down()
        return linear(space.norm(self.gain), self.weights.unembedding)


Forward = Callable[[Tensor, Tensor, Attend], Tensor]  # tokens, positions -> logits


class DecodingBatch:
    """The active sequences as tensors. Rebuilt only if a sequence begins, ends or moves to another slot."""

    def __init__(
        self,
        cache: SlotCache | PagedCache,
        slots: Sequence[int],
        tokens: Sequence[Sequence[int]],  # of each sequence, all of them
        sampling: Sequence[Sampling],
    ) -> None:
        device = cache.keys.device
        count = max(slots) + 1
        last, places, moving = [0] * count, [0] * count, [0] * count
        for slot, length in cache.resting():
            if slot < count:
                places[slot] = length  # an idle row writes behind what it keeps
        for slot, known in zip(slots, tokens, strict=True):
            last[slot], places[slot], moving[slot] = known[-1], len(known) - 1, 1
        self.tokens = torch.tensor(last, device=device)
        self.attend = cache.decoding(
            torch.tensor(places, device=device),
            torch.tensor(moving, device=device),
            seen=max(map(len, tokens)),
        )
        full = list(slots) == list(range(count))
        self.slots = None if full else torch.tensor(slots, device=device)
        self.sampler = Sampler(sampling, [len(known) for known in tokens])

    def step(self, logits_of: Forward) -> tuple[Tensor, Tensor]:
        """The next token of each sequence, and its log-probability."""
        attend = self.attend
        logits = logits_of(self.tokens, attend.positions, attend)
        if self.slots is None:
            self.tokens, log_probs = self.sampler(logits)
            sampled = self.tokens
        else:
            sampled, log_probs = self.sampler(logits.index_select(0, self.slots))
            self.tokens[self.slots] = sampled
        attend.advance()
        return sampled, log_probs
