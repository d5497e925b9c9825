"""What the whole distribution says of a token, beyond the probability of the sampled one."""

from __future__ import annotations

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """−Σ π log π over the last dimension."""
    log_prob = torch.log_softmax(logits, dim=-1)
    # A token of probability 0 has log-probability −∞ and contributes nothing.
    return -(log_prob.exp() * log_prob.masked_fill(log_prob.isinf(), 0.0)).sum(-1)


def sum_pi_squared(logits: Tensor) -> Tensor:
    """Σ π² over the last dimension: what `optimal_token_baseline` needs."""
    return torch.exp(torch.logsumexp(2 * logits, dim=-1) - 2 * torch.logsumexp(logits, dim=-1))
