"""Ranks that share one model: each has a part of its matrices, or a part of a pass's tokens.

Tensor parallelism (arXiv 1909.08053): matrices come in pairs. The first is divided by its rows and the second
by its columns, so that what lies between them, heads or the middle of the feed-forward, is a rank's own: one
sum over the group ends each pair. Embedding and output layer are divided by their rows, the vocabulary.

Sequence parallelism (Ulysses, arXiv 2309.14509): every layer works on a rank's own tokens, but for attention:
there each rank has all tokens of some heads. One exchange before it and one after it swap tokens for heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from toolwright.failures import UserError
from toolwright.models import lora
from toolwright.models.decoder import PIECES, Decoder, Layer, Shape
from toolwright.models.layer import Attend
from toolwright.models.tensor_group import TensorGroup

# Divided by rows, so that heads or the feed-forward's middle are apart; the others are divided by columns.
BY_ROWS = ("qkv", "gate_up")
NAMES = {"heads": "heads", "kv_heads": "key-value heads", "ffn": "feed-forward's middle"}


@dataclass(frozen=True)
class Cut:
    """The part of a parameter that this rank holds."""

    dim: int
    places: Tensor  # along that dimension
    size: int  # of the whole there

    def part(self, whole: Tensor) -> Tensor:
        return whole.index_select(self.dim, self.places.to(whole.device))

    def whole(self, part: Tensor, group: TensorGroup) -> Tensor:
        """Nought from all ranks but the one that has it."""
        size = list(part.shape)
        size[self.dim] = self.size
        found = part.new_zeros(size).index_copy_(self.dim, self.places.to(part.device), part)
        dist.all_reduce(found, group=group.group)
        return found


def cuts(module: nn.Module) -> dict[str, Cut]:
    """The cut of each divided parameter by name. All other parameters are whole on every rank."""
    found = {}
    for path, one in module.named_modules():
        if isinstance(one, Decoder):
            found.update({f"{path}.{name}" if path else name: cut for name, cut in one.cuts.items()})
    return found


def split(decoder: Decoder, group: TensorGroup) -> None:
    """Keep this rank's part of every matrix; `Decoder.shape` stays that of the whole."""
    if not decoder.fast:
        raise UserError(
            f"a model with a forward of its own ({decoder.shape.family}) cannot be divided by tensors: leave "
            "tensor out of runtime.placement.policy.ranks"
        )
    if decoder.stored != "float32":
        raise UserError(
            f"weights kept in {decoder.stored} cannot be divided by tensors: set model.dtype=bfloat16, "
            "or leave tensor out of runtime.placement.policy.ranks"
        )
    check_tensor(decoder.shape, group.size)
    vocabulary = Cut(0, group.places([decoder.shape.vocab]), decoder.shape.vocab)
    tables = ["embedding"] if decoder.shape.tied else ["embedding", "unembedding"]
    found = {f"{table}.weight": vocabulary for table in tables}
    for number, one in enumerate(decoder.layers):
        assert isinstance(one, Layer)
        found.update({f"layers.{number}.{name}": cut for name, cut in _of_layer(one, group)})
        _shrink(one, group)
    for name, cut in found.items():
        path, _, last = name.rpartition(".")
        whole = decoder.get_parameter(name)
        part = nn.Parameter(cut.part(whole.detach()), requires_grad=whole.requires_grad)
        decoder.get_submodule(path).register_parameter(last, part)
    decoder.tensor, decoder.cuts = group, {**found, "unembedding.weight": vocabulary}


def _of_layer(one: Layer, group: TensorGroup) -> Iterator[tuple[str, Cut]]:
    for matrix in PIECES:
        rows = [rows for _, rows in one.pieces(matrix)]
        columns = getattr(one, matrix).weight.shape[1]
        by_rows = matrix in BY_ROWS
        whole = Cut(0, group.places(rows), sum(rows)) if by_rows else Cut(1, group.places([columns]), columns)
        yield f"{matrix}.weight", whole
        if getattr(one, matrix).bias is not None:
            yield f"{matrix}.bias", whole
        if matrix not in one.adapters:
            continue
        low = one.adapters[matrix]
        assert isinstance(low, lora.LowRank)
        for number, piece in enumerate(piece for piece in low.pieces if piece.adapted):
            if by_rows:
                yield f"adapters.{matrix}.b.{number}", Cut(0, group.places([piece.rows]), piece.rows)
            else:
                yield f"adapters.{matrix}.a.{number}", whole


def _shrink(one: Layer, group: TensorGroup) -> None:
    """Set the layer's sizes to this rank's share."""
    s = one.shape
    one.tensor = group
    one.shape = replace(
        s, heads=s.heads // group.size, kv_heads=s.kv_heads // group.size, ffn=s.ffn // group.size
    )
    for matrix, low in one.adapters.items():
        assert isinstance(low, lora.LowRank)
        low.tensor, low.by_rows = group, matrix in BY_ROWS
        if low.by_rows:
            low.pieces = [
                replace(piece, start=piece.start // group.size, rows=piece.rows // group.size)
                for piece in low.pieces
            ]


def check_tensor(shape: Shape, size: int) -> None:
    """Raise a UserError for a model that cannot be divided among so many ranks."""
    for name in ("heads", "kv_heads", "ffn"):
        count = getattr(shape, name)
        if count % size:
            raise UserError(
                f"runtime.placement.policy.ranks.tensor={size} does not divide the model's {NAMES[name]}, of "
                f"which there are {count}"
            )


class SequenceGroup:
    """The ranks that compute one pass together, each its own tokens of it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)

    def counts(self, tokens: int) -> list[int]:
        """Count the tokens of a pass on each rank: nearly the same number, one after the other."""
        return [tokens * (rank + 1) // self.size - tokens * rank // self.size for rank in range(self.size)]

    def own(self, tokens: int) -> slice:
        return slice(tokens * self.rank // self.size, tokens * (self.rank + 1) // self.size)

    def attention(self, attend: Attend, tokens: int) -> Attend:
        """`attend` over all of a pass's tokens, for queries, keys and values of this rank's own."""
        return SplitAttention(attend, self, self.counts(tokens))

    def joined(self, values: Tensor, places: Tensor, count: int) -> Tensor:
        """[count, …] on every rank, from what each has at its places. A rank's gradient is that of its own:
        all of them go on with the same."""
        found: Tensor = _Joined.apply(values, places, count, self.group)
        return found

    def divide(self, decoder: Decoder) -> None:
        """Make the decoder's passes those of this group."""
        if not decoder.fast and not decoder.exact:
            raise UserError(
                f"this {decoder.shape.family} model computes attention by itself and needs whole sequences: "
                "leave sequence out of runtime.placement.policy.ranks"
            )
        check_sequence(decoder.shape, self.size, tensor=1 if decoder.tensor is None else decoder.tensor.size)
        decoder.sequence = self


def check_sequence(shape: Shape, size: int, *, tensor: int = 1) -> None:
    """Raise a UserError if the heads cannot be divided among so many ranks, each split by `tensor`."""
    heads, kv_heads = shape.heads // tensor, shape.kv_heads // tensor
    if heads % size or (kv_heads % size and size % kv_heads):
        raise UserError(
            f"runtime.placement.policy.ranks.sequence={size} does not go with heads={heads} and "
            f"kv_heads={kv_heads} on a rank: choose a divisor of the heads that also divides kv_heads, or "
            "is a multiple of it"
        )


class SplitAttention:
    """Attention among all tokens of a pass, called with some of them."""

    def __init__(self, attend: Attend, sequence: SequenceGroup, counts: Sequence[int]) -> None:
        self.attend, self.sequence, self.counts = attend, sequence, list(counts)

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ranks, (own, heads, dim) = self.sequence.size, q.shape
        if k.shape[1] % ranks:  # fewer than ranks: those with the same queries' keys have them twice
            k, v = (x.repeat_interleave(ranks // x.shape[1], dim=1) for x in (k, v))
        apart = [x.reshape(own, ranks, x.shape[1] // ranks, dim) for x in (q, k, v)]
        mine = self._exchanged(torch.cat(apart, dim=2), to_heads=True)
        gathered = self.attend(layer, *mine.split([x.shape[2] for x in apart], dim=1))
        return self._exchanged(gathered, to_heads=False).reshape(own, heads, dim)

    def _exchanged(self, x: Tensor, *, to_heads: bool) -> Tensor:
        out: Tensor = _Exchange.apply(x, self, to_heads)
        return out

    def to_heads(self, x: Tensor) -> Tensor:
        """[own tokens, ranks, heads of each, dim] -> [all tokens, own heads, dim]"""
        given = x.transpose(0, 1).contiguous()
        out = x.new_empty(sum(self.counts), *x.shape[2:])
        sent = [x.shape[0]] * self.sequence.size
        dist.all_to_all_single(out, given.flatten(0, 1), self.counts, sent, group=self.sequence.group)
        return out

    def to_tokens(self, x: Tensor) -> Tensor:
        """The way back of that."""
        own, ranks = self.counts[self.sequence.rank], self.sequence.size
        out = x.new_empty(ranks * own, *x.shape[1:])
        dist.all_to_all_single(out, x.contiguous(), [own] * ranks, self.counts, group=self.sequence.group)
        return out.view(ranks, own, *x.shape[1:]).transpose(0, 1).contiguous()


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, split: SplitAttention, to_heads: bool) -> Tensor:
        ctx.split, ctx.to_heads = split, to_heads
        return split.to_heads(x) if to_heads else split.to_tokens(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        back = ctx.split.to_tokens if ctx.to_heads else ctx.split.to_heads
        return back(gradients[0]), None, None


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, places: Tensor, count: int, group: dist.ProcessGroup) -> Tensor:
        ctx.save_for_backward(places)
        whole = values.new_zeros(count, *values.shape[1:]).index_copy_(0, places, values)
        dist.all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0].index_select(0, ctx.saved_tensors[0]), None, None, None
