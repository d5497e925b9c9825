"""DPPO: a token is silenced by how far its probability has moved, not by its ratio.

    L = −sg(min(r, c)) A log π, and 0 where A > 0 and D(π, π_old) > ε_high with π above π_old,
                                     or A < 0 and D > ε_low with π below it

`dppo_tv`: D = |π − π_old|. `dppo_kl`: D = KL of the two outcomes "this token" and "another", old to new. A
ratio of 5 from 0.001 to 0.005 is no great change, and 1.3 from 0.7 to 0.9 is one. arXiv 2602.04879.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import importance

TINY = 1e-8


@registry.register("dppo_tv", needs={"old_log_prob"})
def dppo_tv(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    clip_low: float = 0.15,
    clip_high: float = 0.15,
    clip_c: float | None = 20.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    moved = (log_prob.exp() - old_log_prob.exp()).detach()
    silenced = torch.where(advantages > 0, moved > clip_high, moved < -clip_low)
    return _losses(old_log_prob, log_prob, advantages, silenced, clip_c)


@registry.register("dppo_kl", needs={"old_log_prob"})
def dppo_kl(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    clip_low: float = 0.05,
    clip_high: float = 0.05,
    clip_c: float | None = 20.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    new, old = log_prob.detach().exp(), old_log_prob.exp()
    # Rounded, a log-probability may lie above 0.
    old_rest, new_rest = ((1 - p).clamp(min=0) for p in (old, new))
    others = old_rest * ((old_rest + TINY) / (new_rest + TINY)).log()
    divergence = old * (old_log_prob - log_prob.detach()) + others
    up, down = (divergence > clip_high) & (new > old), (divergence > clip_low) & (new < old)
    return _losses(old_log_prob, log_prob, advantages, torch.where(advantages > 0, up, down), clip_c)


def _losses(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, silenced: Tensor, clip_c: float | None
) -> tuple[Tensor, dict[str, Tensor]]:
    most = math.inf if clip_c is None else clip_c
    ratio = importance(log_prob, old_log_prob).detach()
    losses = -advantages * ratio.clamp(max=most) * log_prob
    measures = {"clip_fraction": silenced, "dual_clip_fraction": (ratio > most) & ~silenced}
    return torch.where(silenced, torch.zeros_like(losses), losses), measures
