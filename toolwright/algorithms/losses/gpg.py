"""The plain policy gradient: no ratio, no clip, no old policy.

    L = −A log π        REINFORCE; as GPG's loss, arXiv 2504.02546

Exact for the first update on fresh samples; with several updates a step nothing holds the policy back.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.losses import registry


@registry.register("gpg", "reinforce")
def gpg(*, log_prob: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return -advantages * log_prob, {}
