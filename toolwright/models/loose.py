"""Noise that follows from a place and a seed, and weights that it scatters among numbers that round alike."""

from __future__ import annotations

import torch
from torch import Tensor

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


def mixed_(places: Tensor) -> Tensor:
    """lowbias32 of int32 numbers, in place: 32 bits that look random. Everything wraps."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32))):
        places.bitwise_xor_((places >> shift).bitwise_and_((1 << 32 - shift) - 1)).mul_(factor)
    return places.bitwise_xor_((places >> 16).bitwise_and_(0xFFFF))


def hashed(*numbers: int) -> int:
    """One signed 32-bit number of several: a seed for `noise`."""
    found = 0
    for number in numbers:
        found = (found * 0x9E3779B1 + number) % (1 << 32)
        for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
            found = (found ^ found >> shift) * factor % (1 << 32)
        found ^= found >> 16
    return found - (1 << 32) if found >= 1 << 31 else found


def noise(first: int, count: int, *, seed: int, device: torch.device) -> Tensor:
    """[count] int32: the bits of the places from `first` on."""
    places = torch.arange(first, first + count, device=device).to(torch.int32)
    return mixed_(places.bitwise_xor_(seed))
