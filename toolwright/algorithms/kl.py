"""Estimates of KL(π ‖ π_ref) from the log-probabilities of sampled tokens, and a coefficient that adapts.

With d = log π − log π_ref:

    k1 (kl)          d                 unbiased, may be negative
    abs              |d|
    k2 (mse)         d² / 2            biased as a value; its gradient is the unbiased gradient of the KL
    k3 (low_var_kl)  e^{−d} + d − 1    unbiased, never negative; its gradient is not that of the KL

(J. Schulman, "Approximating KL divergence", 2020.) A name with `+` has the value of that estimator and the
gradient of k2: what is reported is the KL and what is descended is its gradient. `k2+` is k2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from toolwright.algorithms.arguments import check_shape, working_type
from toolwright.failures import UserError, nearest


def _k1(difference: Tensor) -> Tensor:
    return difference


def _k2(difference: Tensor) -> Tensor:
    return 0.5 * difference.square()


def _k3(difference: Tensor) -> Tensor:
    # One token far from the reference must not overflow, nor outweigh the whole batch.
    bounded = difference.clamp(-20, 20)
    return (torch.exp(-bounded) + bounded - 1).clamp(max=10)


_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "k1": _k1,
    "kl": _k1,
    "abs": torch.abs,
    "k2": _k2,
    "mse": _k2,
    "k3": _k3,
    "low_var_kl": _k3,
}


def names() -> list[str]:
    return [name + suffix for name in _ESTIMATORS for suffix in ("", "+")]


def compute(name: str, log_prob: Tensor, ref_log_prob: Tensor, mask: Tensor | None = None) -> Tensor:
    """The estimate for each token, in the shape and type of `log_prob`; 0 outside the mask, where the
    inputs may hold anything. Masking the result alone would leave the gradient NaN where an input is."""
    if name not in names():
        raise UserError(f"unknown KL estimator {name!r}; {nearest(name, names())}")
    check_shape("kl", "ref_log_prob", ref_log_prob, log_prob.shape)
    work = working_type(log_prob)
    difference = log_prob.to(work) - ref_log_prob.to(work)
    if mask is not None:
        check_shape("kl", "mask", mask, log_prob.shape)
        difference = torch.where(mask.bool(), difference, 0)
    value = _ESTIMATORS[name.removesuffix("+")](difference)
    if name.endswith("+"):
        slope = _k2(difference)
        value = value.detach() + (slope - slope.detach())
    return value.to(log_prob.dtype)


def adapt(coef: float, *, observed: float, target: float, horizon: float, trajectories: int) -> float:
    """The next coefficient: coef · (1 + clip(observed / target − 1, ±0.2) · trajectories / horizon).

    Proportional control in log space (arXiv 1909.08593, section 2.2). The coefficient is the whole state: a
    KL that is not finite, of an update that was skipped, leaves it as it is.
    """
    if not math.isfinite(observed):
        return coef
    error = min(max(observed / target - 1.0, -0.2), 0.2)
    return coef * (1.0 + error * trajectories / horizon)
