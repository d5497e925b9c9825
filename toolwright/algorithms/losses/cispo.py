"""CISPO: the ratio is clipped as a weight, outside the gradient, so that no token is ever silenced.

    L = −sg(clip(r, 1 − ε_low, 1 + ε_high)) A log π        arXiv 2506.13585

`clip_low` of 1 or more is no lower bound, as in the paper.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import importance


@registry.register("cispo", needs={"old_log_prob"})
def cispo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = importance(log_prob, old_log_prob).detach()
    weight = ratio.clamp(1 - clip_low, 1 + clip_high)
    return -weight * advantages * log_prob, {"clip_fraction": ratio != weight}
