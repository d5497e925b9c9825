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
def rloo(*, rewards: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, rewards.device)
    centred = groups.standardise(rewards.sum(-1), by_std=False, epsilon=0.0)
    scores = centred * groups.size / (groups.size - 1).clamp(min=1)
    advantages = scores[:, None] * mask
    return advantages, advantages
