"""The importance ratio π / π_old and its clipped surrogate, which most losses are built on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# e^20: beyond it the ratio says only that the token should not be learned from, and overflows.
_LIMIT = 20.0


def bounded(log_ratio: Tensor) -> Tensor:
    """A log-ratio, no further from 0 than its exponential can be used."""
    return log_ratio.clamp(-_LIMIT, _LIMIT)


def importance(log_prob: Tensor, old_log_prob: Tensor) -> Tensor:
    """π / π_old for each token."""
    return bounded(log_prob - old_log_prob).exp()


def surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """−A·ratio, and the same with the ratio clipped to [1 − low, 1 + high]."""
    return -advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)


def clip_measures(free: Tensor, clipped: Tensor, advantages: Tensor) -> dict[str, Tensor]:
    """Which tokens the clip silenced: in all, at the lower bound, at the upper."""
    silenced = clipped.detach() > free.detach()
    return {
        "clip_fraction": silenced,
        "clip_fraction_low": silenced & (advantages < 0),
        "clip_fraction_high": silenced & (advantages > 0),
    }


def silenced_gradient(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, silenced: Tensor, clip_c: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    """−sg(min(r, c)) A log π, and 0 where a token is silenced; with what was done to which token."""
    most = math.inf if clip_c is None else clip_c
    ratio = importance(log_prob, old_log_prob).detach()
    losses = -advantages * ratio.clamp(max=most) * log_prob
    measures = {"clip_fraction": silenced, "dual_clip_fraction": (ratio > most) & ~silenced}
    return torch.where(silenced, torch.zeros_like(losses), losses), measures


def sequence_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each sequence's sampled tokens; 0 where it has none."""
    return (values * mask).sum(-1) / mask.sum(-1).clamp(min=1)


def covariance(log_prob: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each token's share of Cov(log π, A): (log π − mean)·(A − mean), which is what lowers the entropy."""
    count = mask.sum().clamp(min=1)
    mean_log_prob = (log_prob * mask).sum() / count
    mean_advantage = (advantages * mask).sum() / count
    return torch.where(mask.bool(), (log_prob - mean_log_prob) * (advantages - mean_advantage), -torch.inf)
