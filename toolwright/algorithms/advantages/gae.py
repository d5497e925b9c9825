"""Generalised advantage estimation, with a critic.

    δ_t = r_t + γ V_{t+1} − V_t        A_t = δ_t + γλ A_{t+1}        R_t = A_t + V_t        arXiv 1506.02438

Tokens the policy did not sample are stepped over: t + 1 is the next sampled token. With `turn_end`, γ and λ
apply where a turn ends and are 1 within it. Advantages are whitened over the batch.

Other than verl, masked tokens are 0 afterwards; there they hold −mean/std of the batch, and returns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.masked import decay, whiten


@registry.register("gae", needs={"values"})
def gae(
    *,
    rewards: Tensor,
    mask: Tensor,
    values: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    turn_end: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    discount, trace = (decay(factor, rewards, turn_end) for factor in (gamma, gamma * lam))
    advantages = traced(rewards, mask, values, discount, trace)
    return whiten(advantages, mask), (advantages + values) * mask


def traced(rewards: Tensor, mask: Tensor, values: Tensor, discount: Tensor, trace: Tensor) -> Tensor:
    """A_t with γ = `discount` and γλ = `trace` of each token, before whitening."""
    sampled = mask.bool()
    advantages = torch.zeros_like(rewards)
    next_value = next_advantage = rewards.new_zeros(len(rewards))
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + discount[:, t] * next_value - values[:, t]
        next_advantage = torch.where(sampled[:, t], delta + trace[:, t] * next_advantage, next_advantage)
        next_value = torch.where(sampled[:, t], values[:, t], next_value)
        advantages[:, t] = next_advantage
    return advantages
