"""Decoupled GAE: the critic learns whole returns, the policy a λ that fits the length of the attempt.

    R_t = A_t(λ_critic) + V_t        λ_critic = 1: no bootstrapping, so no bias of an untrained critic
    A_t = A_t(λ_policy)              λ_policy = 1 − 1 / (α · length)

arXiv 2503.01491 (decoupled), 2504.05118 (VAPO: adapted to the length, α = 0.05). A fixed λ weighs a reward at
the end of a long answer by almost nothing; this one looks ahead over the same part of every answer. The
length is counted where λ applies: in tokens, or with `turn_end` in turns. Without `alpha`, λ_policy is `lam`.
Advantages are whitened over the batch.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.advantages.gae import traced
from toolwright.algorithms.masked import decay, whiten


@registry.register("decoupled_gae", needs={"values"})
def decoupled_gae(
    *,
    rewards: Tensor,
    mask: Tensor,
    values: Tensor,
    gamma: float = 1.0,
    lam: float = 1.0,
    critic_lam: float = 1.0,
    alpha: float | None = 0.05,
    turn_end: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    discount = decay(gamma, rewards, turn_end)
    whole = traced(rewards, mask, values, discount, decay(gamma * critic_lam, rewards, turn_end))
    trace = decay(gamma * lam, rewards, turn_end)
    if alpha is not None:
        length = (mask if turn_end is None else turn_end).sum(-1, keepdim=True).clamp(min=1)
        by_length = (1 - 1 / (alpha * length)).clamp(min=0)
        trace = discount * (by_length if turn_end is None else by_length.where(turn_end.bool(), 1.0))
    advantages = traced(rewards, mask, values, discount, trace)
    return whiten(advantages, mask), (whole + values) * mask
