"""GSPO: one ratio a sequence, the geometric mean of its tokens' ratios, clipped as a whole.

    s = (π(y) / π_old(y))^{1/|y|}     L = max(−A s, −A clip(s, 1 − ε_low, 1 + ε_high))     arXiv 2507.18071

In the paper's token form: the value at each token is s, the gradient that of its own log-probability, so
advantages may differ within a sequence. The paper aggregates by `seq-mean-token-mean`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import clip_measures, sequence_mean, surrogate


@registry.register("gspo", needs={"old_log_prob"})
def gspo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
) -> tuple[Tensor, dict[str, Tensor]]:
    sequence = sequence_mean(log_prob - old_log_prob, mask).detach()[:, None]
    ratio = (log_prob - log_prob.detach() + sequence).clamp(max=10).exp()
    free, clipped = surrogate(ratio, advantages, clip_low, clip_high)
    return torch.maximum(free, clipped), clip_measures(free, clipped, advantages)
