"""DPPO by total variation: a token is silenced by how far its probability has moved, not by its ratio.

    L = −sg(min(r, c)) A log π, and 0 where A > 0 and π − π_old > ε_high, or A < 0 and π_old − π > ε_low

A ratio of 5 from 0.001 to 0.005 is no great change, and 1.3 from 0.7 to 0.9 is one. arXiv 2602.04879.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import silenced_gradient


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
    return silenced_gradient(old_log_prob, log_prob, advantages, silenced, clip_c)
