"""ReMax: the baseline is what the policy's own greedy attempt at the task earns.

    A_t = Σ_{s ≥ t} r_s − R(greedy)        arXiv 2310.10505

Where steps earn rewards, `baseline_to_go` has of R(greedy) only what that attempt had still to earn at the
same turn: the whole of it would hold against late tokens what was earned before them. As in verl, a masked
token within a trajectory keeps its return as advantage; every loss masks it.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.advantages import registry
from toolwright.algorithms.masked import reward_to_go


@registry.register("remax", needs={"reward_baseline", "baseline_to_go"})
def remax(
    *, rewards: Tensor, mask: Tensor, reward_baseline: Tensor, baseline_to_go: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    returns = reward_to_go(rewards, mask)
    baseline = reward_baseline[:, None] if baseline_to_go is None else baseline_to_go
    return returns - baseline * mask, returns
