"""AdamW's moments in eight bits, a scale for each block of a row (after arXiv 2110.02861), and its step.

A number is kept as a small float relative to the largest of its block: four bits of exponent, three or four
of mantissa. It is rounded up or down at random, by how near each is. Rounded to the nearest, a second moment
would not fall any more: what an update takes from it is less than half of the way to the next number. Weights
in bfloat16 are rounded at random as well, in place of master weights in float32 (arXiv 2010.06192).

The noise follows from the place of a number and the count of updates, so that a resumed run rounds alike.
`models/kernels/eight_bit.py` does the same on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from toolwright.models import kernels
from toolwright.models.loose import hashed, noise

BLOCK = 256  # numbers of a row that share a scale
LEAST = 4096  # numbers of a matrix whose moments are worth it
ROWS_AT_ONCE = 1 << 20  # numbers that are unpacked at a time
SIGNED, UNSIGNED = 3, 4  # bits of mantissa: a first moment has a sign, the root of a second has none
EXPONENT = 15  # the largest number's, of four bits
MOMENTS = ("exp_avg", "root_avg_sq")


@dataclass(frozen=True)
class UpdateStep:
    """The settings of one update."""

    lr: float
    betas: tuple[float, float]
    decay: float
    eps: float
    count: int  # of updates, this one included


def packed(parameter: Tensor) -> bool:
    """Tell whether this parameter's moments are kept in eight bits: a matrix that is not small."""
    return parameter.dim() == 2 and parameter.numel() >= LEAST


def blank(parameter: Tensor) -> dict[str, Tensor]:
    """The state of a matrix before its first update. The count of updates stays where the host reads it."""
    blocks = (len(parameter), -(-parameter.shape[1] // BLOCK))
    state = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in MOMENTS}
    scales = {f"{name}_scale": parameter.new_zeros(blocks, dtype=torch.float32) for name in MOMENTS}
    return {**state, **scales, "step": torch.zeros(())}


@torch.no_grad()
def move(
    parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], step: UpdateStep, *, number: int
) -> None:
    """Update a matrix and its moments in place. `number` tells its noise from other matrices'."""
    seeds = [hashed(number, step.count, kind) for kind in range(3)]
    if parameter.is_cuda and kernels.available():
        from toolwright.models.kernels import eight_bit

        eight_bit.move(parameter, gradient, [state[name] for name in NAMES], _scalars(step), seeds)
        return
    columns = parameter.shape[1]
    rows = max(1, ROWS_AT_ONCE // columns)
    for start in range(0, len(parameter), rows):
        part = slice(start, start + rows)
        held = [state[name][part] for name in NAMES]
        size = (len(held[0]), columns)
        bits = [
            noise(start * columns, size[0] * columns, seed=seed, device=parameter.device).view(size)
            for seed in seeds
        ]
        first, root = _unpacked(held[0], held[1], SIGNED), _unpacked(held[2], held[3], UNSIGNED)
        moved, first, root = _moved(parameter[part].float(), gradient[part].float(), first, root, step)
        _pack(first, held[0], held[1], SIGNED, bits[0])
        _pack(root, held[2], held[3], UNSIGNED, bits[1])
        parameter[part] = rounded(moved, bits[2]) if parameter.dtype == torch.bfloat16 else moved


NAMES = tuple(name + end for name in MOMENTS for end in ("", "_scale"))


def _scalars(step: UpdateStep) -> tuple[float, ...]:
    """(shrink, β₁, β₂, length of the step, √(1 − β₂ᵗ), ε): what the formulas below are made of."""
    first, second = step.betas
    corrections = 1 - first**step.count, math.sqrt(1 - second**step.count)
    return 1 - step.lr * step.decay, first, second, step.lr / corrections[0], corrections[1], step.eps


def _moved(
    weight: Tensor, gradient: Tensor, first: Tensor, root: Tensor, step: UpdateStep
) -> tuple[Tensor, Tensor, Tensor]:
    shrink, beta1, beta2, length, correction, eps = _scalars(step)
    first = first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    root = root.square_().mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2).sqrt_()
    return weight.mul_(shrink).addcdiv_(first, (root / correction).add_(eps), value=-length), first, root


def rounded(x: Tensor, bits: Tensor) -> Tensor:
    """float32 to bfloat16, up or down by chance: what is expected is x itself."""
    up = x.contiguous().view(torch.int32).add(bits.bitwise_and(0xFFFF)).bitwise_and_(-0x10000)
    return torch.where(x.isfinite(), up.view(torch.float32), x).to(torch.bfloat16)


def top(mantissa: int) -> float:
    """The largest number of the format."""
    return 2 - 2.0**-mantissa


def _pack(x: Tensor, codes: Tensor, scales: Tensor, mantissa: int, bits: Tensor) -> None:
    """[rows, columns] into `codes`, with the `scales` of its blocks."""
    blocks = _blocks(x)
    scales.copy_(blocks.abs().amax(-1) / top(mantissa))
    spread = scales.repeat_interleave(BLOCK, 1)[:, : x.shape[1]]
    size = torch.where(spread > 0, x.abs() / spread, 0.0)
    code = encoded(size, mantissa, bits)
    if mantissa == SIGNED:
        code = code.add_((x < 0).to(torch.int32) << 7)
    else:  # a root that rounds to nought would divide a first moment that does not
        code = torch.maximum(code, (size > 0).to(torch.int32))
    codes.copy_(code.to(torch.uint8))


def _unpacked(codes: Tensor, scales: Tensor, mantissa: int) -> Tensor:
    code = codes.to(torch.int32)
    if mantissa == SIGNED:
        size = decoded(code & 0x7F, mantissa)
        size = torch.where(code > 0x7F, -size, size)
    else:
        size = decoded(code, mantissa)
    return size * scales.repeat_interleave(BLOCK, 1)[:, : codes.shape[1]]


def encoded(size: Tensor, mantissa: int, bits: Tensor) -> Tensor:
    """Numbers of 0 to `top` as codes (int32). The noise decides between the two that are next to a number."""
    cut = 23 - mantissa  # bits of float32's mantissa that go
    chance = bits.bitwise_and((1 << cut) - 1)
    normal = ((size.view(torch.int32) + chance) >> cut) - ((127 - EXPONENT) << mantissa)
    small = (size * 2.0 ** (EXPONENT - 1 + mantissa) + chance * 2.0**-cut).floor().to(torch.int32)
    code = torch.where(size < 2.0 ** (1 - EXPONENT), small, normal)
    return code.clamp_(max=(1 << 4 + mantissa) - 1)


def decoded(code: Tensor, mantissa: int) -> Tensor:
    normal = ((code + ((127 - EXPONENT) << mantissa)) << 23 - mantissa).view(torch.float32)
    return torch.where(code < 1 << mantissa, code * 2.0 ** (1 - EXPONENT - mantissa), normal)


def _blocks(x: Tensor) -> Tensor:
    """[rows, blocks, BLOCK], noughts after the end."""
    missing = -x.shape[1] % BLOCK
    return torch.nn.functional.pad(x, (0, missing)).unflatten(1, (-1, BLOCK))
