"""Estimates of KL(π ‖ π_ref) from the log-probabilities of sampled tokens, and a coefficient that adapts.

With d = log π − log π_ref:

    k1 (kl)          d                 unbiased, may be negative
    abs              |d|
    k2 (mse)         d² / 2            biased as a value; its gradient is the unbiased gradient of the KL
    k3 (low_var_kl)  e^{−d} + d − 1    unbiased, never negative; its gradient is not that of the KL

(J. Schulman, "Approximating KL divergence", 2020.) A name with `+` has the value of that estimator and the
gradient of k2: what is reported is the KL and what is descended is its gradient. `k2+` is k2.

All of them are of tokens that π itself sampled. After the first update of a step π_old sampled them:

    unbiased         r k3, r = π / π_old, whose gradient r d ∇log π is that of the KL for any π_old

(DeepSeek-V3.2, arXiv 2512.02556; why k3 as a loss has another gradient: arXiv 2510.01555.)
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from toolwright.algorithms.arguments import check_shape, working_type
from toolwright.algorithms.ratio import importance
from toolwright.failures import UserError, nearest


def _k1(difference: Tensor, ratio: Tensor) -> Tensor:
    return difference


def _abs(difference: Tensor, ratio: Tensor) -> Tensor:
    return difference.abs()


def _k2(difference: Tensor, ratio: Tensor) -> Tensor:
    return 0.5 * difference.square()


def _k3(difference: Tensor, ratio: Tensor) -> Tensor:
    # One token far from the reference must not overflow, nor outweigh the whole batch.
    bounded = difference.clamp(-20, 20)
    return (torch.exp(-bounded) + bounded - 1).clamp(max=10)


def _unbiased(difference: Tensor, ratio: Tensor) -> Tensor:
    # The gradient of r·k3 through both factors, written down: no bound on the value silences it.
    return _descending(ratio * _k3(difference, ratio), (ratio * difference).detach() * difference)


_ESTIMATORS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": _k1,
    "k1+": _k1,
    "kl": _k1,
    "kl+": _k1,
    "abs": _abs,
    "abs+": _abs,
    "k2": _k2,
    "k2+": _k2,
    "mse": _k2,
    "mse+": _k2,
    "k3": _k3,
    "k3+": _k3,
    "low_var_kl": _k3,
    "low_var_kl+": _k3,
    "unbiased": _unbiased,
}


def names() -> list[str]:
    return list(_ESTIMATORS)


def compute(
    name: str,
    log_prob: Tensor,
    ref_log_prob: Tensor,
    mask: Tensor | None = None,
    *,
    old_log_prob: Tensor | None = None,  # of the policy that sampled; None: the tokens are fresh
) -> Tensor:
    """The estimate for each token, in the shape and type of `log_prob`; 0 outside the mask, where the
    inputs may hold anything. Masking the result alone would leave the gradient NaN where an input is."""
    if name not in names():
        raise UserError(f"unknown KL estimator {name!r}; {nearest(name, names())}")
    old = log_prob.detach() if old_log_prob is None else old_log_prob
    given = {"log_prob": log_prob, "ref_log_prob": ref_log_prob, "old_log_prob": old}
    for key, tensor in {**given, "mask": old if mask is None else mask}.items():
        check_shape("kl", key, tensor, log_prob.shape)
    work = working_type(log_prob)
    new, reference, old = (
        x.to(work) if mask is None else torch.where(mask.bool(), x.to(work), 0) for x in given.values()
    )
    difference, ratio = new - reference, importance(new, old).detach()
    value = _ESTIMATORS[name](difference, ratio)
    if name.endswith("+"):
        value = _descending(value, _k2(difference, ratio))
    return value.to(log_prob.dtype)


def _descending(value: Tensor, slope: Tensor) -> Tensor:
    """The value of the one, the gradient of the other."""
    return value.detach() + (slope - slope.detach())


def adapt(coef: float, *, observed: float, target: float, horizon: float, trajectories: int) -> float:
    """The next coefficient: coef · (1 + clip(observed / target − 1, ±0.2) · trajectories / horizon).

    Proportional control in log space (arXiv 1909.08593, section 2.2). The coefficient is the whole state: a
    KL that is not finite, of an update that was skipped, leaves it as it is.
    """
    if not math.isfinite(observed):
        return coef
    error = min(max(observed / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * trajectories / horizon)
