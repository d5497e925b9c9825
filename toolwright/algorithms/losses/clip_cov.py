"""Clip-Cov: some of the tokens that lower the entropy most are left out of the update.

    L = max(−A r, −A clip(r, 1 − ε_low, 1 + ε_high)), 0 on the chosen tokens        arXiv 2505.22617

`clip_cov_ratio` of all tokens, at least one, drawn by `seed` among those that PPO's clip has not silenced and
whose covariance (log π − mean)(A − mean) over the minibatch lies between the bounds.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.losses import preparations, registry
from toolwright.algorithms.masked import drawn
from toolwright.algorithms.ratio import clip_measures, covariance, importance, surrogate


@preparations.register("clip_cov")
def left_out(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    clip_cov_ratio: float = 2e-4,
    clip_cov_lb: float = 1.0,
    clip_cov_ub: float = 5.0,
    seed: int = 0,
) -> dict[str, Tensor]:
    free, clipped = surrogate(importance(log_prob, old_log_prob), advantages, clip_low, clip_high)
    share = covariance(log_prob, advantages, mask)
    candidates = (share > clip_cov_lb) & (share < clip_cov_ub) & (clipped <= free)
    return {"dropped": drawn(candidates, max(int(mask.sum() * clip_cov_ratio), 1), seed)}


@registry.register("clip_cov", needs={"old_log_prob"})
def clip_cov(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    dropped: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
) -> tuple[Tensor, dict[str, Tensor]]:
    free, clipped = surrogate(importance(log_prob, old_log_prob), advantages, clip_low, clip_high)
    measures = clip_measures(free, clipped, advantages) | {"dropped_fraction": dropped}
    return free.maximum(clipped) * ~dropped, measures
