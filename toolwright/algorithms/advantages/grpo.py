"""Group relative policy optimisation: an attempt against the others at the same task.

    A = (R − mean(R_group)) / (std(R_group) + ε)        arXiv 2402.03300
    A = R − mean(R_group)                               without `normalize_by_std`, arXiv 2503.20783

As in verl, a lone member keeps its raw score: there is nothing to compare it with, and what remains is
REINFORCE without a baseline.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups


@registry.register("grpo")
def grpo(
    *,
    scores: Tensor,
    mask: Tensor,
    group: Sequence[Hashable],
    normalize_by_std: bool = True,
    epsilon: float = 1e-6,
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    relative = groups.standardise(scores, by_std=normalize_by_std, epsilon=epsilon, lone_is_raw=True)
    advantages = relative[:, None] * mask
    return advantages, advantages
