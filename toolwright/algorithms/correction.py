"""Importance weights for the gap between the probabilities that sampled and those that train.

The engine and the learner are two programs; their log-probabilities of one token differ. The weight
w = π_old / π_sampled = exp(old_log_prob − sampled_log_prob) makes an expectation under the sampler one under
the learner; capped, it is truncated importance sampling (Ionides, 2008).

At the level of tokens w is the token's own ratio. At the level of sequences it is the product over the
sequence's tokens, the exact weight of the whole sequence, given to each of its tokens. `geometric` is the
geometric mean of the ratios instead, which does not grow with the length.

`truncate` caps w at `high`. `mask` sets it to 0 outside [low, high], so that the token, or the sequence, is
not learned from. `reject` is of whole sequences, and weighs nothing: one with any w outside [low, high] has
weight 0, every other one weight 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from toolwright.algorithms import masked
from toolwright.algorithms.arguments import check_matrix, check_shape, working_type
from toolwright.failures import UserError, nearest

MODES = ("none", "truncate", "mask", "reject")
LEVELS = ("token", "sequence", "geometric")


@torch.no_grad()
def compute(
    *,
    old_log_prob: Tensor,  # [trajectories, tokens]
    sampled_log_prob: Tensor,
    mask: Tensor,
    mode: str = "truncate",
    level: str = "token",
    low: float = 0.0,
    high: float = 2.0,
) -> tuple[Tensor, dict[str, Tensor]]:
    """(weights [trajectories, tokens], 0 outside the mask; metrics). Mode `none`: weights of 1."""
    for name, value, known in (("mode", mode, MODES), ("level", level, LEVELS)):
        if value not in known:
            raise UserError(f"correction: unknown {name} {value!r}; {nearest(value, known)}")
    check_matrix("correction", "old_log_prob", old_log_prob)
    check_shape("correction", "sampled_log_prob", sampled_log_prob, old_log_prob.shape)
    check_shape("correction", "mask", mask, old_log_prob.shape)
    work = working_type(old_log_prob)
    gap = torch.where(mask.bool(), old_log_prob.to(work) - sampled_log_prob.to(work), 0)
    log_weight, units = gap, mask
    if level != "token":
        log_weight, units = gap.sum(-1, keepdim=True), mask.bool().any(-1, keepdim=True)
    if level == "geometric":
        log_weight = log_weight / mask.sum(-1, keepdim=True).clamp(min=1)
    ratio = log_weight.clamp(-20, 20).exp()
    outside = (ratio > high) | ((ratio < low) if mode in ("mask", "reject") else False)
    if mode == "reject":
        outside = (outside & units.bool()).any(-1, keepdim=True)
    weight = ratio.clamp(max=high) if mode == "truncate" else ratio if mode == "mask" else ratio.new_ones(())
    if mode in ("mask", "reject"):
        weight = weight * ~outside
    weights = weight.expand_as(gap) * mask.to(gap.dtype)
    metrics = {
        "weight_mean": masked.mean(weights, mask),
        f"{mode}_fraction": masked.mean(outside.expand_as(gap).to(gap.dtype), mask),
        "effective_sample_size": _effective_sample_size(ratio, units),
        "kl_k1": masked.mean(-gap, mask),
        "kl_k3": masked.mean(torch.expm1(gap.clamp(-20, 20)) - gap, mask),
    }
    if mode == "none":
        metrics.pop("none_fraction")
    return weights.to(old_log_prob.dtype), metrics


def _effective_sample_size(ratio: Tensor, units: Tensor) -> Tensor:
    """(Σw)² / (n Σw²) of the weights as they are: 1 where all are equal, 1/n where one rules."""
    kept = torch.where(units.bool(), ratio, 0)
    count = units.sum().clamp(min=1)
    return kept.sum().square() / (count * kept.square().sum()).clamp(min=torch.finfo(kept.dtype).tiny)
