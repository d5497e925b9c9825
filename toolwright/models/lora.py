"""LoRA (arXiv 2106.09685): W + α/r · B A, only B and A learned; on disk as peft writes it.

The sum is formed before it is multiplied with, by the learner in every pass and by the engine once a
publication: both then multiply with the very same numbers, and generation is as fast as without an adapter.
What is small survives the sum's rounding to bfloat16, because the base is loosened (`precision.py`). With the
adapter off the decoder is the base.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from toolwright.models import kernels
from toolwright.models.loose import first_place, loosen_
from toolwright.models.quantised import QuantisedMatrix

if TYPE_CHECKING:
    from toolwright.models.decoder import Decoder
    from toolwright.models.tensor_group import TensorGroup


@dataclass
class Adapter:
    """The settings that a decoder's low-rank matrices share."""

    rank: int
    alpha: float
    scale: float  # α / r, or α / √r
    base: str = ""  # the folder of the model that it was made for
    on: bool = True
    extra: dict[str, Any] = field(default_factory=dict)  # of its configuration, to be kept on saving

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within, the decoder is the base."""
        before, self.on = self.on, False
        try:
            yield
        finally:
            self.on = before


@dataclass(frozen=True)
class MatrixRows:
    """Some rows of a matrix that are a matrix of their own on the hub."""

    module: str  # its name there
    start: int
    rows: int
    adapted: bool = True
    turned: bool = False  # queries or keys, whose rows are in another order there


class LowRank(nn.Module):
    """One matrix's share of an adapter: A and B for each of its pieces that is adapted."""

    # The ranks that the matrix is divided among, by its rows and so B's, or by its columns and so A's.
    tensor: TensorGroup | None = None
    by_rows = True

    def __init__(
        self, adapter: Adapter, pieces: Sequence[MatrixRows], like: Tensor, *, transposed: bool
    ) -> None:
        """`like` is the matrix, [out, in], or [in, out] where it is `transposed`."""
        super().__init__()
        self.adapter, self.pieces, self.transposed = adapter, pieces, transposed
        columns = like.shape[0 if transposed else 1]
        adapted = [piece for piece in pieces if piece.adapted]
        zeros = partial(torch.zeros, dtype=torch.float32, device=like.device)
        self.a = nn.ParameterList(zeros(adapter.rank, columns) for _ in adapted)
        self.b = nn.ParameterList(zeros(piece.rows, adapter.rank) for piece in adapted)
        self.number = 0  # of its matrix among those that are adapted

    def initialise(self, generator: torch.Generator) -> None:
        """B is zero, so that the policy begins as the base; A as peft draws it."""
        with torch.no_grad():
            for a in self.a:
                bound = 1 / math.sqrt(a.shape[1])
                drawn = torch.empty(a.shape).uniform_(-bound, bound, generator=generator)
                a.copy_(drawn)

    def forward(self, weight: Tensor) -> Tensor:
        """The matrix as it is to be used."""
        if not self.adapter.on:
            return weight
        if weight.dtype == torch.bfloat16:
            weight = loosen_(weight.float(), self.number)
        rows = weight.t() if self.transposed else weight
        low = zip(self.a, self.b, strict=True)
        sums = []
        # The products would round what is added to what it is added to, were they in less than float32.
        with torch.autocast(weight.device.type, enabled=False):
            for piece in self.pieces:
                part = rows[piece.start : piece.start + piece.rows]
                if piece.adapted:
                    a, b = self._copied(*next(low))
                    part = torch.addmm(part, b, a, alpha=self.adapter.scale)
                sums.append(part)
        whole = sums[0] if len(sums) == 1 else torch.cat(sums)
        return whole.t() if self.transposed else whole

    def added_rows(self) -> Iterator[tuple[int, int, float, Tensor, Tensor]]:
        """Of each piece that is adapted, while the adapter is on: its first row, how many it has, and what is
        added to them: scale, A and B."""
        adapted = [piece for piece in self.pieces if piece.adapted and self.adapter.on]
        for piece, a, b in zip(adapted, self.a, self.b, strict=False):
            yield piece.start, piece.rows, self.adapter.scale, *self._copied(a, b)

    def added(self, base: nn.Module) -> Tensor:
        """The sum with a base that may be stored in less than float32; on a GPU in one pass over it, where no
        way back goes through it."""
        scales = base.scales if isinstance(base, QuantisedMatrix) else None
        stored = base.codes if isinstance(base, QuantisedMatrix) else base.weight
        assert isinstance(stored, Tensor)
        plain = not self.adapter.on or stored.dtype == torch.float32 or torch.is_grad_enabled()
        if plain or not stored.is_cuda or not kernels.available():
            whole: Tensor = self(base.weight)
            return whole
        return self._merged(stored, scales)

    def _copied(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """The one that all ranks have goes into what is a rank's own."""
        if self.tensor is None:
            return a, b
        return (self.tensor.copied(a), b) if self.by_rows else (a, self.tensor.copied(b))

    def _merged(self, stored: Tensor, scales: Tensor | None) -> Tensor:
        from toolwright.models.kernels.merge import merge

        out = torch.empty(stored.shape, dtype=torch.bfloat16, device=stored.device)
        low = zip(self.a, self.b, strict=True)
        for piece in self.pieces:
            rows = slice(piece.start, piece.start + piece.rows)
            merge(
                stored[rows],
                None if scales is None else scales[rows],
                next(low) if piece.adapted else None,
                out[rows],
                alpha=self.adapter.scale,
                place=first_place(self.number),
                before=piece.start * stored.shape[1],
            )
        return out


class AdaptedLinear(nn.Module):
    """A linear layer of another's model with an adapter beside it."""

    def __init__(self, inner: nn.Module, low: LowRank) -> None:
        super().__init__()
        self.inner, self.low = inner, low

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = functional_call(self.inner, {"weight": self.weight}, (x,))
        return out

    @property
    def weight(self) -> Tensor:
        """Some models ask a layer for its weight: of what type it is, say."""
        whole: Tensor = self.low(self.inner.weight)
        return whole


def attach(decoder: Decoder, adapter: Adapter, modules: Sequence[str], *, seed: int) -> None:
    """Adapters for these matrices, by their names on the hub; all else is frozen."""
    decoder.requires_grad_(False)
    decoder.adapter = adapter
    chosen, generator = set(modules), torch.Generator().manual_seed(seed)
    for number, low in enumerate(decoder.adapt(adapter, chosen)):
        low.number = number
        low.initialise(generator)


def matched(decoder: Decoder, targets: str | Sequence[str]) -> list[str]:
    """The adaptable matrices that `targets` names as in peft: in full, or by the end of their name."""
    known = decoder.adaptable()
    if targets == "all-linear":
        return known
    names = [targets] if isinstance(targets, str) else list(targets)
    return [one for one in known if any(one == name or one.endswith(f".{name}") for name in names)]


def parts(decoder: Decoder) -> Iterator[tuple[str, LowRank]]:
    for name, module in decoder.named_modules():
        if isinstance(module, LowRank):
            yield name, module


def learned(decoder: Decoder) -> dict[str, Tensor]:
    """The adapter's part of the decoder's state."""
    prefixes = tuple(f"{name}." for name, _ in parts(decoder))
    return {name: tensor for name, tensor in decoder.state_dict().items() if name.startswith(prefixes)}


@torch.no_grad()
def folded(decoder: Decoder) -> dict[str, Tensor]:
    """The decoder's state with the adapter merged into its matrices."""
    mine = learned(decoder)
    state = {name: tensor for name, tensor in decoder.state_dict().items() if name not in mine}
    for name, module in decoder.named_modules():
        if isinstance(module, QuantisedMatrix):
            del state[f"{name}.codes"], state[f"{name}.scales"]
            state[f"{name}.weight"] = module.weight
    for name, low in parts(decoder):
        path = decoder.matrix_of(name)
        state[path] = low(state[path])
    return {name.replace(".inner.", "."): tensor for name, tensor in state.items()}


def restore(decoder: Decoder, state: Mapping[str, Tensor]) -> None:
    """An adapter's state into its decoder."""
    mine = learned(decoder)
    strange = sorted(mine.keys() ^ state.keys())
    if strange:
        raise ValueError(f"it has another adapter: {strange[0]} is not in both")
    with torch.no_grad():
        for name, tensor in mine.items():
            if tensor.shape != state[name].shape:
                raise ValueError(f"{name} belongs to another rank or model")
            tensor.copy_(state[name])
