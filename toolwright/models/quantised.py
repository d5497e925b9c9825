"""A matrix that is not learned itself, in eight bits a number: the base of an adapter."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCK = 128  # neighbours of a row that share a scale
MOST = 127


class QuantisedMatrix(nn.Module):
    """Whole numbers of eight bits, [rows, columns], and a scale for each block of a row."""

    codes: Tensor
    scales: Tensor

    def __init__(self, columns: int, rows: int, *, bias: bool = False, device: torch.device | None) -> None:
        super().__init__()
        self.register_buffer("codes", torch.zeros(rows, columns, dtype=torch.int8, device=device))
        self.register_buffer("scales", torch.zeros(rows, -(-columns // BLOCK), device=device))
        self.bias = nn.Parameter(torch.zeros(rows, device=device)) if bias else None

    @torch.no_grad()
    def load(self, weight: Tensor) -> None:
        rows, columns = self.codes.shape
        wide = weight.to(self.codes.device).float()
        blocks = F.pad(wide, (0, -columns % BLOCK)).view(rows, -1, BLOCK)
        scales = blocks.abs().amax(-1, keepdim=True) / MOST
        codes = torch.where(scales > 0, blocks / scales, 0.0).round_().to(torch.int8)
        self.codes.copy_(codes.flatten(1)[:, :columns])
        self.scales.copy_(scales[..., 0])

    @property
    def weight(self) -> Tensor:
        """The matrix in bfloat16."""
        columns = self.codes.shape[1]
        scales = self.scales.repeat_interleave(BLOCK, 1)[:, :columns]
        return (self.codes * scales).to(torch.bfloat16)
