"""VESPO: the importance weight of a whole sequence, bent by a kernel that fades on both sides of 1.

    W = π(y) / π_old(y)     L = −sg(W^k e^{λ (1 − W)}) A log π        arXiv 2602.10693

k and λ by the sign of A. The kernel is 1 for an unchanged policy and highest at W = k / λ: with the paper's
numbers a good sequence counts most where it has become a third less likely, a bad one where it has become
half as likely again. The paper aggregates by `token-mean`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms.losses import registry
from toolwright.algorithms.ratio import bounded


@registry.register("vespo", needs={"old_log_prob"})
def vespo(
    *,
    old_log_prob: Tensor,
    log_prob: Tensor,
    advantages: Tensor,
    mask: Tensor,
    k_pos: float = 2.0,
    lambda_pos: float = 3.0,
    k_neg: float = 3.0,
    lambda_neg: float = 2.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    change = bounded(log_prob.detach() - old_log_prob)
    log_weight = bounded((change * mask).sum(-1, keepdim=True))
    good = advantages >= 0
    k = torch.where(good, k_pos, k_neg).to(log_prob.dtype)
    rate = torch.where(good, lambda_pos, lambda_neg).to(log_prob.dtype)
    kernel = (rate + k * log_weight - rate * log_weight.exp()).exp()
    return -kernel * advantages * log_prob, {"kernel": kernel}
