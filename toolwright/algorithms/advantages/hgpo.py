"""HGPO: a step against the steps that share its state, and ever more of the states before it.

    A = Σ_k w_k A_k / Σ_k w_k,   w_k = (k + 1)^α

A_k compares a step's return with those of the steps whose last k states are the same, for k from 1 to
`history` + 1. A level that says nothing, since the step is alone there or all its peers earned the same, is
left out. With `base_group` the episode against its group is level 0. arXiv 2602.22817.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.anchors import discount, episodes, same_history
from toolwright.algorithms.groups import Groups
from toolwright.failures import UserError


@registry.register("hgpo", needs={"step_reward", "anchor"})
def hgpo(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    step_rewards: Tensor,
    trajectory: Sequence[Hashable],
    anchor: Sequence[Hashable],
    mode: str = "mean_std_norm",
    history: int = 2,
    alpha: float = 1.0,
    base_group: bool = False,
    gamma: float | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    if mode not in ("mean_norm", "mean_std_norm"):
        raise UserError(f"hgpo: unknown mode {mode!r}; known: mean_norm, mean_std_norm")
    by_std, own = mode == "mean_std_norm", list(zip(group, trajectory, strict=True))
    returns = step_rewards if gamma is None else discount(step_rewards, own, gamma)
    base = episodes(scores, group, range(len(group)), by_std=by_std, epsilon=epsilon) * base_group
    levels = [base.to(scores.device)]
    for keys in same_history(own, anchor, history + 1):
        levels.append(Groups.of(keys, scores.device).standardise(returns, by_std=by_std, epsilon=epsilon))
    found = torch.stack(levels)
    weight = torch.arange(1, len(levels) + 1, device=found.device).double()[:, None] ** alpha * (found != 0)
    advantages = ((weight * found).sum(0) / weight.sum(0).clamp(min=epsilon))[:, None] * mask
    return advantages, advantages
