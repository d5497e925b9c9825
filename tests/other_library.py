"""A pytest plugin that adds up torch's matrix products in another order, as another vendor's library would.

    python -m pytest -p other_library tests/learner

Rows are multiplied a few at a time, and each sum is taken in two halves: its numbers differ from the plain
product's in the last bits, and a row's depend on its place among the others."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 5
_matmul = torch.matmul


def _product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    if a.dim() < 2 or b.dim() < 2 or a.shape[-1] < 2 or not a.dtype.is_floating_point:
        return _matmul(a, b) if out is None else out.copy_(_matmul(a, b))
    half, found = a.shape[-1] // 2, []
    for number, rows in enumerate(a.split(ROWS, dim=-2)):
        cut = half if number % 2 else half // 2 + 1
        found.append(_matmul(rows[..., :cut], b[..., :cut, :]) + _matmul(rows[..., cut:], b[..., cut:, :]))
    whole = torch.cat(found, dim=-2) if found else _matmul(a, b)
    return whole if out is None else out.copy_(whole)


def _sum(plus: Tensor, *factors: Tensor, beta: float = 1, alpha: float = 1, **named: Any) -> Tensor:
    """Of `addmm` and `baddbmm`, whose factors have names of their own."""
    out = named.pop("out", None)
    product = _product(*factors, *named.values()) * alpha
    whole = product if beta == 0 else plus * beta + product
    return whole if out is None else out.copy_(whole)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    product = _product(x, weight.transpose(-1, -2)) if x.dim() > 1 else _matmul(x, weight.t())
    return product if bias is None else product + bias


def pytest_configure() -> None:
    torch.set_float32_matmul_precision("highest")
    for name in ("mm", "bmm", "matmul", "__matmul__"):
        for place in (torch, Tensor):
            if hasattr(place, name):
                setattr(place, name, _product)
    for name in ("addmm", "baddbmm"):
        for place in (torch, Tensor):
            setattr(place, name, _sum)
        setattr(Tensor, f"{name}_", lambda self, *more, **named: self.copy_(_sum(self, *more, **named)))
    F.linear = _linear
