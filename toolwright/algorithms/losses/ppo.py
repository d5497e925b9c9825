"""PPO's clipped surrogate, with separate bounds and dual clip.

    L = max(−A r, −A clip(r, 1 − ε_low, 1 + ε_high)),   at most −A c where A < 0,   r = π / π_old

arXiv 1707.06347; ε_high > ε_low, "clip higher", from 2503.14476; dual clip c from 1912.09729, which keeps a
token that became far likelier and turned out bad from ruling the whole step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import clip_measures, importance, surrogate
from toolwright.failures import UserError


@registry.register("ppo", "vanilla", needs={"old_log_prob"})
def ppo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_c: float | None = 3.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    if clip_c is not None and clip_c <= 1:
        raise UserError(f"ppo: clip_c={clip_c} must be above 1, the ratio of an unchanged policy")
    free, clipped = surrogate(importance(log_prob, old_log_prob), advantages, clip_low, clip_high)
    losses = torch.maximum(free, clipped)
    measures = clip_measures(free, clipped, advantages)
    if clip_c is None:
        return losses, measures
    bound = -advantages * clip_c
    negative = advantages < 0
    measures["dual_clip_fraction"] = negative & (losses > bound)
    return torch.where(negative, torch.minimum(losses, bound), losses), measures
