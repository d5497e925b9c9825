"""Odds ratio preference optimisation: likelihood of the chosen answer, and its odds over the rejected one's.

    p(y) = exp(mean log π(y_t))        odds(y) = p(y) / (1 − p(y))
    L = −log p(chosen) − λ log σ(log odds(chosen) − log odds(rejected))

arXiv 2403.07691. There is no reference. `weight` is λ, which TRL calls beta. As in the paper every answer
weighs the same in the likelihood, whatever its length, and only the answer's tokens count.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from toolwright.algorithms.preferences import registry
from toolwright.failures import UserError


@registry.register("orpo")
def orpo(
    *, chosen: Tensor, rejected: Tensor, chosen_length: Tensor, rejected_length: Tensor, weight: float = 0.1
) -> tuple[Tensor, dict[str, Tensor]]:
    if weight < 0:
        raise UserError(f"orpo: weight={weight} must not be negative")
    good, bad = chosen / chosen_length, rejected / rejected_length
    margin = _log_odds(good) - _log_odds(bad)
    losses = -good - weight * logsigmoid(margin)
    return losses, {
        "accuracy": margin.detach().sign() / 2 + 0.5,
        "margin": margin.detach(),
        "nll": -good.detach(),
    }


def _log_odds(mean_log_prob: Tensor) -> Tensor:
    """log p / (1 − p); a probability of 1 is taken for one just below."""
    bounded = mean_log_prob.clamp(max=-1e-7)
    return bounded - torch.log(-torch.expm1(bounded))
