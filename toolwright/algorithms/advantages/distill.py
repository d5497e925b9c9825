"""On-policy distillation: the policy samples, and a teacher's log-probabilities grade each of its tokens.

    k_t = log π(y_t) − log π_teacher(y_t)              of a sampled token: the reverse KL, on average
    A_t = −α Σ_{s ≥ t} γ^{s − t} k_s + w (R − mean(R_group))

Generalised knowledge distillation, arXiv 2306.13649, on the policy's own samples alone (λ = 1) and with the
reverse KL (β = 1); by policy gradients as in "On-policy distillation" (Thinking Machines Lab, 2025), γ = 0:
a token answers for itself alone. `coef` is α; `reward_weight`, w, adds what the task's reward says. With
`turn_end`, γ applies where a turn ends and is 1 within it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups
from toolwright.algorithms.masked import decay


@registry.register("distill", needs={"teacher_log_prob", "old_log_prob"})
def distill(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    old_log_prob: Tensor,
    teacher_log_prob: Tensor,
    gamma: float = 0.0,
    coef: float = 1.0,
    reward_weight: float = 0.0,
    turn_end: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    closer, returns = teacher_log_prob - old_log_prob, torch.zeros_like(mask)
    discount, following = decay(gamma, closer, turn_end), closer.new_zeros(len(closer))
    for t in reversed(range(closer.shape[1])):
        following = torch.where(mask[:, t].bool(), closer[:, t] + discount[:, t] * following, following)
        returns[:, t] = following
    better = Groups.of(group, mask.device).standardise(scores, by_std=False, epsilon=0.0).to(mask.dtype)
    advantages = (coef * returns + reward_weight * better[:, None]) * mask
    return advantages, advantages
