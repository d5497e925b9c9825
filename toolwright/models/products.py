"""Matrix products for learner and engine: by `product_kernel` on a CPU in float32, else by torch's library.

A row's result does not depend on the rows beside it, so what the engine computes for one token at a time and
the learner for thousands is the same to the last bit.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from toolwright.models.product_kernel import CHUNK, FIELDS, kernel

# Multiplications below which a second thread takes longer to wake than it saves.
ALONE = 1 << 21
PACKED_AT_ONCE = 1 << 20  # numbers of a matrix that is laid out for one product only: they stay in a cache


def fixed(x: Tensor) -> bool:
    """True if products of this tensor are those of `product_kernel`."""
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and kernel() is not None
    )


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix [inner, columns] laid out for products: panels of neighbouring columns, each read from end to
    end, [panels, inner, columns of a panel]. What stands beyond the last column is never used."""

    panels: Tensor
    columns: int

    @property
    def inner(self) -> int:
        return self.panels.shape[1]

    @classmethod
    def of(cls, weight: Tensor, room: Tensor | None = None) -> PackedMatrix:
        """Of [columns, inner], as a parameter is stored; into `room` if that is given."""
        columns, inner = weight.shape
        wide = _wide()
        count = -(-columns // wide)
        panels = torch.empty(count, inner, wide) if room is None else room[:count]
        whole = columns // wide
        if whole:
            panels[:whole].copy_(weight[: whole * wide].view(whole, wide, inner).transpose(1, 2))
        if whole < count:
            panels[whole, :, : columns - whole * wide] = weight[whole * wide :].t()
        return cls(panels, columns)


class PreparedProduct:
    """A product with its places in memory filled in, to be computed again and again.

    out = x · matrix, or out += x · matrix: [rows, inner] by [inner, columns]."""

    def __init__(self, x: Tensor, matrix: PackedMatrix, out: Tensor, *, add: bool = False) -> None:
        panels = matrix.panels
        rows, (_, inner, wide) = len(x), panels.shape
        jobs = len(panels) * -(-rows // CHUNK)
        self.keep = (x, matrix, out)
        self.fields = _fields(
            x.data_ptr(), panels.data_ptr(), out.data_ptr(), rows, matrix.columns, inner, 1,
            x.stride(0), wide, inner * wide, out.stride(0), 0, 0, 0, add, jobs,
        )  # fmt: skip
        self.threads = _threads(rows * matrix.columns * inner)

    def __call__(self) -> Tensor:
        _run(self.fields, self.threads)
        return self.keep[2]

    def of(self, x: Tensor) -> Tensor:
        """Compute the product for another `x` of the same shape and strides."""
        self.fields[0] = x.data_ptr()
        return self()


class BatchedProduct:
    """Like `PreparedProduct`, for a batch of unpacked matrices: [batch, rows, inner] · [batch, inner,
    columns]."""

    def __init__(self, x: Tensor, matrices: Tensor, out: Tensor) -> None:
        batch, rows, inner = x.shape
        columns, wide = matrices.shape[2], _wide()
        jobs = batch * -(-columns // wide) * -(-rows // CHUNK)
        self.keep = (x, matrices, out)
        self.fields = _fields(
            x.data_ptr(), matrices.data_ptr(), out.data_ptr(), rows, columns, inner, batch,
            x.stride(1), matrices.stride(1), wide, out.stride(1),
            x.stride(0), matrices.stride(0), out.stride(0), False, jobs,
        )  # fmt: skip
        self.threads = _threads(batch * rows * columns * inner)

    def __call__(self) -> Tensor:
        _run(self.fields, self.threads)
        return self.keep[2]


def panel_columns() -> int | None:
    """Columns in a panel of a matrix that is laid out; None if torch's library computes products."""
    found = kernel()
    return None if found is None else found.vectors.columns


def _wide() -> int:
    columns = panel_columns()
    assert columns is not None
    return columns


def _run(fields: Any, threads: int) -> None:
    found = kernel()
    assert found is not None
    found.run(fields, threads)


_fields = ctypes.c_int64 * len(FIELDS)


def _threads(multiplications: int) -> int:
    return 1 if multiplications < ALONE else torch.get_num_threads()


def batched(x: Tensor, matrices: Tensor) -> Tensor:
    """[batch, rows, inner] · [batch, inner, columns], without a way back."""
    if not fixed(x):
        return torch.bmm(x, matrices)
    x = x if x.stride(2) == 1 else x.contiguous()
    matrices = matrices if matrices.stride(2) == 1 else matrices.contiguous()
    return BatchedProduct(x, matrices, x.new_empty(*x.shape[:2], matrices.shape[2]))()


def linear(x: Tensor, matrix: Tensor | PackedMatrix, plus: Tensor | None = None) -> Tensor:
    """x · matrix + plus: [rows, inner] by [inner, columns], a parameter's view or laid out."""
    if isinstance(matrix, PackedMatrix):
        return _multiplied(x, matrix, plus)
    if not fixed(x):
        return torch.mm(x, matrix) if plus is None else torch.addmm(plus, x, matrix)
    if torch.is_grad_enabled() and (x.requires_grad or matrix.requires_grad):
        out: Tensor = _Linear.apply(x, matrix, plus)
        return out
    return _multiplied(x, matrix.t(), plus)


def _multiplied(x: Tensor, weight: Tensor | PackedMatrix, plus: Tensor | None) -> Tensor:
    """By a matrix that is laid out, or by [columns, inner], laid out for this some panels at a time."""
    x = x if x.stride(1) == 1 else x.contiguous()
    columns = weight.columns if isinstance(weight, PackedMatrix) else len(weight)
    out = x.new_empty(len(x), columns)
    if plus is not None:
        out.copy_(plus)
    if not len(x):
        return out
    if isinstance(weight, PackedMatrix):
        return PreparedProduct(x, weight, out, add=plus is not None)()
    weight = weight if weight.stride(1) == 1 else weight.contiguous()
    wide = _wide()
    at_once = max(1, PACKED_AT_ONCE // (wide * weight.shape[1])) * wide
    room = torch.empty(-(-min(at_once, columns) // wide), weight.shape[1], wide)
    for start in range(0, columns, at_once):
        part = PackedMatrix.of(weight[start : start + at_once], room)
        PreparedProduct(x, part, out[:, start : start + at_once], add=plus is not None)()
    return out


class _Linear(torch.autograd.Function):
    """Forward by fixed sums; the way back, on whose last bits no promise rests, by torch's library."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Tensor, plus: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, matrix)
        ctx.broadcast = plus is not None and plus.dim() == 1
        return _multiplied(x, matrix.t(), plus)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, matrix = ctx.saved_tensors
        gradient = gradients[0]
        of_x = gradient.mm(matrix.t()) if ctx.needs_input_grad[0] else None
        # As the parameter is stored, [columns, inner]: its view's gradient is then its own.
        of_matrix = gradient.t().mm(x).t() if ctx.needs_input_grad[1] else None
        of_plus = None
        if ctx.needs_input_grad[2]:
            of_plus = gradient.sum(0) if ctx.broadcast else gradient
        return of_x, of_matrix, of_plus
