"""Optimal token baseline: at each position, returns weighted by the gradient energy spent to get there.

    A_t = G_t − B_t,   B_t = Σ_i G_{i,t} W_{i,t} / Σ_i W_{i,t},   W_t = Σ_{s ≤ t} (1 − 2 π_s + Σ_v π_s(v)²)

arXiv 2602.07078. Where only one trajectory is left there is nothing to compare with, and B is 0; as in
verl that tail begins where the second longest ends, lengths counted in sampled tokens, and a lone member's
baseline is 0. With importance `weights` ρ, each term of W is scaled by ρ².
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups
from toolwright.algorithms.masked import reward_to_go


@registry.register("optimal_token_baseline", needs={"old_log_prob", "sum_pi_squared"})
def optimal_token_baseline(
    *,
    rewards: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    old_log_prob: Tensor,
    sum_pi_squared: Tensor,
    weights: Tensor | None = None,
    epsilon: float = 1e-8,
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, rewards.device)
    returns = reward_to_go(rewards, mask)
    energy = 1 - 2 * old_log_prob.exp() + sum_pi_squared
    if weights is not None:
        energy = energy * weights.square()
    spent = torch.where(mask.bool(), energy, 0).double().cumsum(-1) * mask
    baseline = groups.sum(returns * spent) / (groups.sum(spent) + epsilon)
    lengths = mask.sum(-1)
    for number in groups.index.unique():
        rows = (groups.index == number).nonzero().flatten()
        second = lengths[rows].sort().values[-2] if len(rows) > 1 else lengths.new_zeros(())
        longest = rows[lengths[rows].argmax()]
        if lengths[longest] > second:
            baseline[longest, int(second) :] = 0
    return (returns - baseline) * mask, returns
