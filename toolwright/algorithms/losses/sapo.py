"""SAPO: a soft gate instead of a clip; the gradient fades as the ratio leaves 1, faster where A < 0.

    L = −A · (4/τ) σ(τ (r − 1)),   τ = τ_pos where A > 0, else τ_neg        arXiv 2511.20347

The paper aggregates by `seq-mean-token-mean`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import importance


@registry.register("sapo", needs={"old_log_prob"})
def sapo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    tau_pos: float = 1.0,
    tau_neg: float = 1.05,
) -> tuple[Tensor, dict[str, Tensor]]:
    ratio = importance(log_prob, old_log_prob)
    tau = torch.full_like(advantages, tau_neg).masked_fill(advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (ratio - 1))
    # The slope against the ratio is 4 σ (1 − σ): 1 for an unchanged policy.
    return -advantages * gate * 4 / tau, {"gate_slope": 4 * gate * (1 - gate)}
