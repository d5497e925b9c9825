"""Weights that bfloat16 can tell exactly, each at a random place among the numbers that round to it."""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.models.noise import mixed_

AT_ONCE = 1 << 20  # numbers that are loosened: they stay in a cache, and take little memory
HALF = 1 << 15  # of the distance between neighbours in bfloat16, in units of float32's last place


def loosen_(weight: Tensor, number: int) -> Tensor:
    """A float32 matrix, in place; `number` is its own among those of its model."""
    for start, part in enumerate(weight.detach().view(-1).split(AT_ONCE)):
        away = _scattered(len(part), first_place(number) + start * AT_ONCE, part.device)
        fixed = (part == 0) | ~part.isfinite()
        part.view(torch.int32).add_(away.masked_fill_(fixed, 0))
    return weight


def first_place(number: int) -> int:
    """The place of a matrix' first number, which the others follow."""
    return number * 0x3C6EF35F


def _scattered(count: int, first: int, device: torch.device) -> Tensor:
    """Distances of less than `HALF` for the weights from the first on: a hash of their places, the same on
    every device."""
    places = torch.arange(count, dtype=torch.int32, device=device).add_(first % (1 << 31))  # all of it wraps
    return mixed_(places).bitwise_and_(2 * HALF - 1).sub_(HALF).clamp_(min=1 - HALF)
