"""PRIME: a reward model that learns from outcomes alone says what each token earned.

    r_t = β (log π_φ(y_t) − log π_ref(y_t)), 0 at the last token; divided by max |Σ_{s ≥ t} r_s| of the batch
    A_t = Σ_{s ≥ t} n/(n−1) · (r_s − mean(r of the group)) + n/(n−1) · (R − mean(R of the group)), whitened

Process reinforcement through implicit rewards, arXiv 2502.01456, as its authors' code has it: the mean of a
group is that of its attempts' means. `process_weight` and `outcome_weight` weigh the two sums. π_φ is trained
with cross-entropy of σ(β Σ_t (log π_φ − log π_ref)) and the outcome, before its rewards are asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms import masked
from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups

EPSILON = 1e-6


@registry.register("prime", needs={"implicit_reward"})
def prime(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    implicit_reward: Tensor,
    beta: float = 0.05,
    process_weight: float = 1.0,
    outcome_weight: float = 1.0,
) -> tuple[Tensor, Tensor]:
    groups, tokens = Groups.of(group, mask.device), mask.sum(-1).clamp(min=1)
    following = masked.reward_to_go(mask, mask)
    last = mask.bool() & (following == 1)
    earned = torch.where(mask.bool() & ~last, beta * implicit_reward, 0)
    earned = earned / (masked.reward_to_go(earned, mask).abs().max() + EPSILON)
    against_others = (groups.size / (groups.size - 1).clamp(min=1))[:, None]
    usual = groups.mean(earned.sum(-1) / tokens)[:, None]
    better = groups.standardise(scores, by_std=False, epsilon=0.0)[:, None]
    steps = torch.where(groups.lone[:, None], 0.0, earned.double() - usual)
    credit = against_others * (process_weight * steps * mask + outcome_weight * better * last)
    returns = (masked.reward_to_go(credit, mask) * mask).to(mask.dtype)
    return masked.whiten(returns, mask), returns
