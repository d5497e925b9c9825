"""Dr. GRPO: GRPO without the division by the deviation, which favours tasks that are too easy or too hard.

    A = R − mean(R_group)        arXiv 2503.20783

Its other half is the aggregation `seq-mean-token-sum-norm`, which does not favour short right answers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.advantages.grpo import grpo


@registry.register("dr_grpo")
def dr_grpo(*, scores: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    return grpo(scores=scores, mask=mask, group=group, normalize_by_std=False)
