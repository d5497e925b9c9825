"""Groups: which rows are compared with each other, and the statistics of each row's group."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Every result is given per row. Sums run in double precision: in single precision the mean of equal
    rewards is not that reward, and dividing by a deviation of 1e-9 makes an advantage of the rounding."""

    index: Tensor  # [rows] int64, the group each row belongs to
    size: Tensor  # [rows] float64, members of that group

    @classmethod
    def of(cls, keys: Sequence[Hashable], device: torch.device) -> Groups:
        numbers: dict[Hashable, int] = {}
        index = torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys], dtype=torch.int64)
        counts = torch.bincount(index, minlength=len(numbers))
        return cls(index.to(device), counts[index].double().to(device))

    @property
    def lone(self) -> Tensor:
        """[rows] bool: the row has nothing to be compared with."""
        return self.size == 1

    def sum(self, values: Tensor) -> Tensor:
        groups = int(self.index.max()) + 1 if len(self.index) else 0
        totals = values.new_zeros((groups, *values.shape[1:]), dtype=torch.float64)
        return totals.index_add(0, self.index, values.double())[self.index]

    def mean(self, values: Tensor) -> Tensor:
        return self.sum(values) / self.size

    def std(self, values: Tensor) -> Tensor:
        """Unbiased; 0 for a lone row."""
        squares = (values.double() - self.mean(values)).square()
        return (self.sum(squares) / (self.size - 1).clamp(min=1)).sqrt()

    def standardise(
        self, values: Tensor, *, by_std: bool, epsilon: float, lone_is_raw: bool = False
    ) -> Tensor:
        """(x − mean) / (std + ε), or x − mean; a lone row gets 0, or with `lone_is_raw` its own value."""
        result = values.double() - self.mean(values)
        if by_std:
            result = result / (self.std(values) + epsilon)
        return torch.where(self.lone, values.double() if lone_is_raw else 0.0, result)
