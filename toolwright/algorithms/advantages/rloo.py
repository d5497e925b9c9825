"""REINFORCE leave-one-out: the baseline of an attempt is the mean of the others.

    A_i = R_i − mean(R_j, j ≠ i) = n/(n−1) · (R_i − mean(R))        arXiv 2402.14740

Other than verl, a lone member gets 0 and not its raw score: the mean of no others is unknown, not 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups


@registry.register("rloo")
def rloo(*, scores: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    centred = groups.standardise(scores, by_std=False, epsilon=0.0)
    against_others = centred * groups.size / (groups.size - 1).clamp(min=1)
    advantages = against_others[:, None] * mask
    return advantages, advantages
