"""Tensor parallelism (arXiv 1909.08053): every rank of a group holds a part of each matrix of a decoder.

Matrices come in pairs. The first is divided by its rows and the second by its columns, so that what lies
between them, heads or the middle of the feed-forward, is a rank's own: one sum over the group ends each pair.
Embedding and output layer are divided by their rows, the vocabulary (`split_vocabulary.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch.distributed as dist
from torch import Tensor, nn

from toolwright.failures import UserError
from toolwright.models import lora
from toolwright.models.decoder import PIECES, Decoder, Layer, Shape
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
    check(decoder.shape, group.size)
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


def check(shape: Shape, size: int) -> None:
    """Raise a UserError for a model that cannot be divided among so many ranks."""
    for name in ("heads", "kv_heads", "ffn"):
        count = getattr(shape, name)
        if count % size:
            raise UserError(
                f"runtime.placement.policy.ranks.tensor={size} does not divide the model's {NAMES[name]}, of "
                f"which there are {count}"
            )
