"""GMPO: the geometric mean of the clipped token ratios, which one outlier cannot move far.

    L = −A (Π_t clip-or-not(r_t))^{1/|y|},  log r_t clipped to [−ε_low, ε_high] where that lowers A r_t

arXiv 2507.20673, which takes (e^{−0.4}, e^{0.4}). The loss is of a sequence, with the mean of its tokens'
advantages, and averages over sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import bounded, sequence_mean


@registry.register("gmpo", "geo_mean", needs={"old_log_prob"})
def gmpo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.4,
    clip_high: float = 0.4,
) -> tuple[Tensor, dict[str, Tensor]]:
    log_ratio = bounded(log_prob - old_log_prob)
    clipped = log_ratio.clamp(-clip_low, clip_high)
    sign = advantages.sign()
    pessimistic = sign * torch.minimum(sign * log_ratio, sign * clipped)
    losses = -sequence_mean(advantages, mask) * sequence_mean(pessimistic, mask).exp()
    outside = log_ratio.detach() != clipped.detach()
    measures = {
        "clip_fraction_high": outside & (advantages > 0),
        "clip_fraction_low": outside & (advantages < 0),
    }
    return losses, measures
