"""SwiGLU: silu(gate) · up, each number read once and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _forward(gate_up, out, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(gate_up + row * 2 * size + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * size + size + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + column, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _backward(gradient, gate_up, back, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    place = row * 2 * size + column
    gate = tl.load(gate_up + place, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + place + size, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + row * size + column, mask=inside, other=0.0).to(tl.float32)
    open_ = tl.sigmoid(gate)
    of_gate = g * up * open_ * (1 + gate * (1 - open_))
    tl.store(back + place, of_gate.to(back.dtype.element_ty), mask=inside)
    tl.store(back + place + size, (g * gate * open_).to(back.dtype.element_ty), mask=inside)


def _grid(rows: int, size: int) -> tuple[int, int]:
    return rows, triton.cdiv(size, BLOCK)


def swiglu(gate_up: Tensor) -> Tensor:
    """[tokens, 2 · ffn] -> [tokens, ffn]"""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    _forward[_grid(rows, size)](gate_up, out, size, BLOCK=BLOCK)
    return out


def back(gradient: Tensor, gate_up: Tensor) -> Tensor:
    """The gradient of gate and up."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    found = torch.empty_like(gate_up)
    _backward[_grid(rows, size)](gradient, gate_up, found, size, BLOCK=BLOCK)
    return found
