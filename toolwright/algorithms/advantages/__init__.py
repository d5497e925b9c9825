"""Advantage estimators: how much better than expected each token was.

One estimator a file; a new file here is found by itself. An estimator is a function of keyword arguments
`(rewards, mask, group, …)` that returns `(advantages, returns)`, both [trajectories, tokens]; it is
registered with what the trainer must provide for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms.arguments import (
    check_matrix,
    check_names,
    check_rows,
    check_shape,
    keys,
    working_type,
)
from toolwright.registry import Registry

Estimator = Callable[..., tuple[Tensor, Tensor]]

registry: Registry[Estimator] = Registry("advantage estimator", "toolwright.algorithms.advantages")

_PER_TOKEN = {"values", "old_log_prob", "sum_pi_squared", "weights"}
_PER_ROW = {"reward_baseline", "step_rewards"}
_KEYS = {"group", "trajectory", "anchor"}
# What verl calls the same inputs, so that its users' calls work unchanged.
_ALIASES = {"old_log_probs": "old_log_prob", "reward_baselines": "reward_baseline"}


def names() -> list[str]:
    return registry.names()


def needs(name: str) -> frozenset[str]:
    """What the trainer must provide for this estimator beyond rewards, mask and group."""
    return registry.get(name).needs


@torch.no_grad()
def compute(
    name: str,
    *,
    rewards: Tensor,  # [trajectories, tokens]
    mask: Tensor,  # [trajectories, tokens]: 1 where the policy sampled the token
    group: Sequence[Hashable] | Tensor | None = None,  # one a trajectory
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) by the estimator of this name, in the shape and type of `rewards`."""
    entry = registry.get(name)
    inputs = {_ALIASES.get(key, key): value for key, value in inputs.items()}
    # These three are always there; an estimator takes what it uses.
    given = entry.accepted(rewards=rewards, mask=mask, group=group) | inputs
    check_names("advantage estimator", entry, given)
    kind = f"advantage estimator {name!r}"
    check_matrix(kind, "rewards", rewards)
    check_shape(kind, "mask", mask, rewards.shape)
    work = working_type(rewards)
    for key, value in given.items():
        if value is None:
            continue
        if key in _KEYS:
            given[key] = keys(value)
            check_rows(kind, key, given[key], len(rewards))
        elif key in _PER_ROW | _PER_TOKEN:
            given[key] = torch.as_tensor(value, dtype=work, device=rewards.device)
            check_shape(kind, key, given[key], rewards.shape if key in _PER_TOKEN else rewards.shape[:1])
    given["rewards"], given["mask"] = rewards.to(work), mask.to(work)
    advantages, returns = entry.target(**given)
    return advantages.to(rewards.dtype), returns.to(rewards.dtype)
