"""Noise that follows from a place and a seed: the same on every device, with nothing to be stored."""

from __future__ import annotations

import torch
from torch import Tensor


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
