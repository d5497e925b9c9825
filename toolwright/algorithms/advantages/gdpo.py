"""GDPO: each part of the reward against the group by itself, so that none drowns the others.

    A = whiten(Σ_k w_k (r_k − mean(r_k)) / (std(r_k) + ε)), over the group, then the batch; arXiv 2601.05242

GRPO divides the sum by its deviation. Attempts with different parts and the same sum then look the same, and
a part that varies little counts little. Here its weight alone says how much a part counts.

`part_weights` say how the score is made of its parts; without parts, the score is the only one. What they do
not make up, such as a penalty for length, is centred on the group and added as it is. `scorer_weights` name
parts that one scorer returned beside its score; then those alone count. A lone member of a group gets 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups
from toolwright.algorithms.masked import whiten
from toolwright.failures import UserError


@registry.register("gdpo", needs={"reward_parts", "part_weights"})
def gdpo(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    reward_parts: Mapping[str, Tensor],
    part_weights: Mapping[str, float],
    scorer_weights: Mapping[str, float] = MappingProxyType({}),
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    if missing := ", ".join(name for name in scorer_weights if name not in reward_parts):
        raise UserError(f"gdpo needs {missing}, but the scorer returns {', '.join(reward_parts)}")
    named = scorer_weights or part_weights
    parts = [(weight, reward_parts[name]) for name, weight in named.items()] or [(1.0, scores)]
    rest, total = scores.double(), torch.zeros_like(scores, dtype=torch.float64)
    for weight, part in parts:
        total = total + weight * groups.standardise(part, by_std=True, epsilon=epsilon)
        rest = rest - weight * part.double()
    if not scorer_weights:
        total = total + groups.standardise(rest, by_std=False, epsilon=0.0)
    advantages = whiten(total[:, None] * mask, mask)
    return advantages, advantages
