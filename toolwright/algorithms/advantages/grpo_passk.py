"""Pass@k: only the best attempt of a group is rewarded, by how far it is ahead of the second.

    A_best = (R_best − R_second) / (std(R_group) + ε), 0 for the others        arXiv 2503.19595

Of equal best attempts none is ahead, and none is rewarded; nor is a lone one.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups


@registry.register("grpo_passk")
def grpo_passk(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    raw = scores.double()
    ahead = torch.zeros_like(raw)
    for number in groups.index.unique():
        rows = (groups.index == number).nonzero().flatten()
        if len(rows) > 1:
            (best, second), (winner, _) = torch.topk(raw[rows], 2)
            ahead[rows[winner]] = best - second
    if normalize_by_std:
        ahead = ahead / (groups.std(raw) + epsilon)
    advantages = ahead[:, None] * mask
    return advantages, advantages
