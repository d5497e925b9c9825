"""KL-Cov: the tokens that lower the entropy most are held near the old policy.

    L = −A r + β |log r| on the tokens of highest covariance, −A r elsewhere        arXiv 2505.22617

The covariance of a token is (log π − mean)(A − mean) with means over the minibatch; `kl_cov_ratio` of all
tokens are chosen, at least one. Other than verl, over the minibatch and not over each micro-batch, where
"at least one" grows with the number of micro-batches.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.losses import preparations, registry
from toolwright.algorithms.ratio import covariance, importance


@preparations.register("kl_cov")
def held_back(
    *, log_prob: Tensor, advantages: Tensor, mask: Tensor, kl_cov_ratio: float = 2e-4
) -> dict[str, Tensor]:
    share = covariance(log_prob, advantages, mask).flatten()
    tokens = int(mask.sum())
    count = min(max(int(tokens * kl_cov_ratio), 1), tokens)
    chosen = mask.new_zeros(mask.numel()).bool()
    chosen[share.argsort(descending=True, stable=True)[:count]] = True
    return {"held": chosen.view_as(mask)}


@registry.register("kl_cov", needs={"old_log_prob"})
def kl_cov(
    *, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, held: Tensor, ppo_kl_coef: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    change = (log_prob - old_log_prob).abs()
    losses = -advantages * importance(log_prob, old_log_prob) + ppo_kl_coef * change * held
    return losses, {"held_fraction": held, "abs_kl": change}
