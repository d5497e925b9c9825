"""How far two float32 results of the same sums may lie apart, on any processor."""

from __future__ import annotations

import torch
from torch import Tensor

UNIT = torch.finfo(torch.float32).eps


def assert_same_sum(
    found: Tensor, wanted: Tensor, *, terms: int, largest: float | None = None, name: str = ""
) -> None:
    """Equal up to the order of adding: each of the `terms` of the sums that led there may cost a unit in the
    last place of the largest number, that of `wanted` unless it is given."""
    most = UNIT * terms * (float(wanted.abs().max()) if largest is None else largest)
    apart = float((found - wanted).abs().max())
    assert apart <= most, f"{name}: {apart:.3g} apart, where rounding explains {most:.3g}"
