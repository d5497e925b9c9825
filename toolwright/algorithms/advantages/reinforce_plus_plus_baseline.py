"""REINFORCE++ with the group's mean as baseline, whitened over the tokens of the whole batch.

    A = whiten(R − mean(R_group))        arXiv 2501.03262

As in verl, a lone member's baseline is 0.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.groups import Groups
from toolwright.algorithms.masked import whiten


@registry.register("reinforce_plus_plus_baseline")
def reinforce_plus_plus_baseline(
    *, scores: Tensor, mask: Tensor, group: Sequence[Hashable]
) -> tuple[Tensor, Tensor]:
    groups = Groups.of(group, scores.device)
    centred = groups.standardise(scores, by_std=False, epsilon=0.0, lone_is_raw=True)
    advantages = whiten(centred[:, None] * mask, mask)
    return advantages, advantages
