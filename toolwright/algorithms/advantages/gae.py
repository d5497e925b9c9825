"""Generalised advantage estimation, with a critic.

    δ_t = r_t + γ V_{t+1} − V_t        A_t = δ_t + γλ A_{t+1}        R_t = A_t + V_t        arXiv 1506.02438

Tokens the policy did not sample are stepped over: t + 1 is the next sampled token. Advantages are whitened
over the batch.

Other than verl, masked tokens are 0 afterwards; there they hold −mean/std of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.masked import whiten


@registry.register("gae", needs={"values"})
def gae(
    *, rewards: Tensor, mask: Tensor, values: Tensor, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    sampled = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(sampled[:, t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(sampled[:, t], values[:, t], next_value)
        advantages[:, t] = next_advantage
    return whiten(advantages, mask), advantages + values
