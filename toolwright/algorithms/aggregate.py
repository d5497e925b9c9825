"""How per-token values become one number, with denominators counted over the whole batch.

A micro-batch, or a rank, sees a part of the batch. Divided by its own counts, the parts' means would not add
up to the mean of the whole, and short or empty parts would weigh more. So the counts are an argument: with
the same `Totals` the results of all parts sum to the result of the whole, and so do their gradients.

    token-mean               Σ_tokens x / tokens                      DAPO, arXiv 2503.14476
    seq-mean-token-sum       Σ_sequences Σ_t x / sequences            REINFORCE over whole sequences
    seq-mean-token-mean      Σ_sequences (Σ_t x / length) / sequences GRPO, arXiv 2402.03300
    seq-mean-token-sum-norm  Σ_sequences Σ_t x / (sequences · C)      Dr. GRPO, arXiv 2503.20783; C a constant

A sequence without any token under the mask is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from toolwright.algorithms.arguments import check_matrix, check_shape, working_type
from toolwright.failures import UserError, nearest


@dataclass(frozen=True)
class Totals:
    """What is divided by: tokens under the mask and sequences that have any, over the whole (mini)batch."""

    tokens: int
    sequences: int

    @classmethod
    def of(cls, mask: Tensor) -> Totals:
        kept = mask.bool()
        return cls(tokens=int(kept.sum()), sequences=int(kept.any(-1).sum()))

    def __add__(self, other: Totals) -> Totals:
        return Totals(self.tokens + other.tokens, self.sequences + other.sequences)


def _token_mean(values: Tensor, mask: Tensor, totals: Totals, norm: float) -> Tensor:
    return values.sum() / max(totals.tokens, 1)


def _sequence_token_sum(values: Tensor, mask: Tensor, totals: Totals, norm: float) -> Tensor:
    return values.sum() / max(totals.sequences, 1)


def _sequence_token_mean(values: Tensor, mask: Tensor, totals: Totals, norm: float) -> Tensor:
    lengths = mask.sum(-1).clamp(min=1)
    return (values.sum(-1) / lengths).sum() / max(totals.sequences, 1)


def _sequence_token_sum_norm(values: Tensor, mask: Tensor, totals: Totals, norm: float) -> Tensor:
    return values.sum() / (max(totals.sequences, 1) * norm)


_MODES: dict[str, Callable[[Tensor, Tensor, Totals, float], Tensor]] = {
    "token-mean": _token_mean,
    "seq-mean-token-sum": _sequence_token_sum,
    "seq-mean-token-mean": _sequence_token_mean,
    "seq-mean-token-sum-norm": _sequence_token_sum_norm,
}


def names() -> list[str]:
    return list(_MODES)


def compute(
    name: str,
    values: Tensor,  # [trajectories, tokens]
    mask: Tensor,  # [trajectories, tokens]
    totals: Totals | None = None,
    norm_tokens: float | None = None,
) -> Tensor:
    """One number. `totals` None: counted from this mask. Masked values may be anything, NaN included."""
    if name not in _MODES:
        raise UserError(f"unknown aggregation {name!r}; {nearest(name, _MODES)}")
    check_matrix("aggregate", "values", values)
    check_shape("aggregate", "mask", mask, values.shape)
    if name == "seq-mean-token-sum-norm" and norm_tokens is None and totals is not None:
        raise UserError(
            "seq-mean-token-sum-norm needs norm_tokens if totals are given, because micro-batches differ in "
            "width"
        )
    norm = float(mask.shape[-1] if norm_tokens is None else norm_tokens)
    kept = torch.where(mask.bool(), values.to(working_type(values)), 0)
    return _MODES[name](kept, mask.to(kept.dtype), totals or Totals.of(mask), norm).to(values.dtype)
