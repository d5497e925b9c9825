"""REINFORCE++: discounted returns, whitened over the whole batch instead of over a group.

    G_t = r_t + γ G_{t+1}        A_t = (G_t − mean(G)) / std(G)        arXiv 2501.03262

Tokens the policy did not sample are stepped over, without a discount. With `turn_end`, γ applies where a turn
ends and is 1 within it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.masked import decay, whiten


@registry.register("reinforce_plus_plus")
def reinforce_plus_plus(
    *, rewards: Tensor, mask: Tensor, gamma: float = 1.0, turn_end: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    sampled, discount = mask.bool(), decay(gamma, rewards, turn_end)
    returns = torch.zeros_like(rewards)
    following = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(sampled[:, t], rewards[:, t] + discount[:, t] * following, following)
        returns[:, t] = following
    returns = returns * mask
    return whiten(returns, mask), returns
