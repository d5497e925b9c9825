"""DPPO by KL: as `dppo_tv`, but how far a probability has moved is the divergence of two outcomes.

    L = −sg(min(r, c)) A log π, and 0 where A > 0 and D > ε_high with π above π_old,
                                     or A < 0 and D > ε_low with π below it

D is the KL of the outcomes "this token" and "another", old to new. arXiv 2602.04879.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import silenced_gradient

TINY = 1e-8


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
    return silenced_gradient(
        old_log_prob, log_prob, advantages, torch.where(advantages > 0, up, down), clip_c
    )
