"""Kahneman-Tversky optimisation: each answer alone, good or bad, against a point of reference.

    r(y) = β log π(y) / π_ref(y)        z = β max(0, mean log π(y') / π_ref(y'))
    L = λ_D (1 − σ(r − z)) of a good answer,    λ_U (1 − σ(z − r)) of a bad one

arXiv 2402.01306. y' are answers to other prompts: z estimates how far the policy is from the reference at
all, and has no gradient. With n_D good and n_U bad answers the paper keeps λ_D n_D / (λ_U n_U) in [1, 4/3].
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.preferences import registry
from toolwright.failures import UserError


@registry.register("kto", needs={"reference"})
def kto(
    *,
    log_prob: Tensor,
    ref_log_prob: Tensor,
    label: Tensor,
    unrelated: Tensor,
    ref_unrelated: Tensor,
    beta: float = 0.1,
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    if beta <= 0:
        raise UserError(f"kto: beta={beta} must be above 0")
    good = label > 0.5
    distance = (unrelated - ref_unrelated).mean().clamp(min=0).detach()
    above = beta * (log_prob - ref_log_prob - distance)
    margin = torch.where(good, above, -above)
    weights = undesirable_weight + (desirable_weight - undesirable_weight) * good.to(margin.dtype)
    measures = {
        "accuracy": margin.detach().sign() / 2 + 0.5,
        "margin": margin.detach(),
        "kl": distance.expand_as(margin),
    }
    return weights * (1 - torch.sigmoid(margin)), measures
