"""ReMax: the baseline is the score of the policy's own greedy attempt at the task.

    A_t = Σ_{s ≥ t} r_s − R(greedy)        arXiv 2310.10505

As in verl, a masked token within a trajectory keeps its return as advantage; every loss masks it.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.masked import reward_to_go


@registry.register("remax", needs={"reward_baseline"})
def remax(*, rewards: Tensor, mask: Tensor, reward_baseline: Tensor) -> tuple[Tensor, Tensor]:
    returns = reward_to_go(rewards, mask)
    return returns - reward_baseline[:, None] * mask, returns
