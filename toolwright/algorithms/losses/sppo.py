"""SPPO: a sequence's log-ratio is regressed onto how often it wins.

    L = (log π(y)/π_old(y) − η S)²,   log π(y)/π_old(y) = Σ_t (log π_t − log π_old,t)        arXiv 2405.00675

The paper's S is P(y beats π_old) − ½. Here it is the sequence's advantage, the mean over its tokens. With
`dr_grpo` and 0/1 rewards the two are the same up to a factor: against its group an attempt wins, ties or
loses, and P − ½ = ½ (R − mean(R)). At the first update the gradient is −2 η A ∇ log π(y), the policy
gradient; then it fades as the log-ratio reaches its target, and turns back beyond it. The loss is of a
sequence, and averages over sequences.
"""

from __future__ import annotations

from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import sequence_mean


@registry.register("sppo", needs={"old_log_prob"})
def sppo(
    *, old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, mask: Tensor, eta: float = 1.0
) -> tuple[Tensor, dict[str, Tensor]]:
    log_ratio = ((log_prob - old_log_prob) * mask).sum(-1)
    target = eta * sequence_mean(advantages, mask)
    measures = {"target_gap": (target - log_ratio).abs()[:, None].expand_as(mask)}
    return (log_ratio - target).square(), measures
