"""Triton kernels for a GPU. Beside each stands, in the room that uses it, the same in plain PyTorch: that is
what runs on a CPU, and what the kernel is tested against."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


@cache
def available() -> bool:
    return find_spec("triton") is not None


def wide(a: Tensor, b: Tensor) -> Tensor:
    """A product in float32 of factors in less: the sums are there, it is rounding them that loses."""
    if a.is_cuda and a.dtype != torch.float32:
        return torch.mm(a, b, out_dtype=torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return torch.mm(a.float(), b.float())


def usable(x: Tensor) -> bool:
    """True if kernels compute this: bfloat16 or half on a GPU. Float32 there goes the plain way."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16) and available()
