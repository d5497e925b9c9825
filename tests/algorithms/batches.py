"""Random batches as training sees them: uneven lengths, masked spans, uneven groups."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor

# Pure arithmetic: many small examples, always the same, and no deadline on a busy machine.
quick = settings(max_examples=15, deadline=None, derandomize=True)


@dataclass(frozen=True)
class Example:
    rewards: Tensor
    mask: Tensor
    group: list[int]
    log_prob: Tensor
    old_log_prob: Tensor
    advantages: Tensor
    weights: Tensor
    values: Tensor
    sum_pi_squared: Tensor


def example(seed: int, rows: int, width: int, holes: bool = True, empty: bool = False) -> Example:
    """Double precision, so that a difference is a difference and not rounding. `empty`: the last row is."""
    generator = torch.Generator().manual_seed(seed)

    def normal() -> Tensor:
        return torch.randn(rows, width, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).double()
    if holes and width > 2:
        mask[::2, 1] = 0
    if empty and rows > 1:
        mask[-1] = 0
    rewards = torch.zeros_like(mask)
    scores = torch.randint(0, 3, (rows,), generator=generator).double() / 2
    rewards[torch.arange(rows), lengths - 1] = scores
    group = torch.randint(0, max(rows // 3, 1), (rows,), generator=generator).tolist()
    old = -normal().abs() - 0.05
    return Example(
        rewards=rewards * mask,
        mask=mask,
        group=group,
        log_prob=old + 0.4 * normal(),
        old_log_prob=old,
        advantages=normal(),
        weights=normal().exp().clamp(max=2),
        values=normal(),
        sum_pi_squared=torch.sigmoid(normal()),
    )


def examples(min_rows: int = 1, max_rows: int = 12, max_width: int = 8) -> st.SearchStrategy[Example]:
    return st.builds(
        example,
        seed=st.integers(0, 2**31),
        rows=st.integers(min_rows, max_rows),
        width=st.integers(1, max_width),
        holes=st.booleans(),
        empty=st.booleans(),
    )
