"""Group policy gradient: the group's mean as baseline, scaled up for the attempts that teach nothing.

    A = α (R − mean(R_group)) / F,   α = attempts / attempts that count        arXiv 2504.02546

As in verl, what counts is a score other than 0, and a lone member's baseline is 0. The paper counts the
attempts whose group has any variance; mind it where rewards are not 0 and 1.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups


@registry.register("gpg")
def gpg(
    *, scores: Tensor, mask: Tensor, group: Sequence[Hashable], f_norm: float = 1.0
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    alpha = len(scores) / torch.count_nonzero(scores).clamp(min=1)
    scaled = alpha * groups.standardise(scores, by_std=False, epsilon=0.0, lone_is_raw=True) / f_norm
    advantages = scaled[:, None] * mask
    return advantages, advantages
