"""OPO: the baseline that minimises the gradient's variance, when a gradient's size grows with its length.

    A = R − Σ_j |o_j| R_j / Σ_j |o_j|        arXiv 2505.23585

As in verl, a lone member's baseline is 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups


@registry.register("opo")
def opo(*, scores: Tensor, mask: Tensor, group: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    raw, lengths = scores.double(), mask.sum(-1).double()
    baseline = groups.sum(lengths * raw) / groups.sum(lengths).clamp(min=1)
    advantages = torch.where(groups.lone, raw, raw - baseline)[:, None] * mask
    return advantages, advantages
