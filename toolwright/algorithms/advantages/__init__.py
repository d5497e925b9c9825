"""Advantage estimators: how much better than expected each token was.

One estimator a file; a new file here is found by itself. An estimator is a function of keyword arguments
that returns `(advantages, returns)`, both [trajectories, tokens]. Of `rewards` of tokens, `scores` of
trajectories, `mask` and `group` it takes those that it names; it is registered with what else the trainer
must provide for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms.arguments import (
    check_matrix,
    check_names,
    check_pair,
    check_rows,
    check_shape,
    keys,
    working_type,
)
from toolwright.registry import Registry

Estimator = Callable[..., tuple[Tensor, Tensor]]

registry: Registry[Estimator] = Registry("advantage estimator", "toolwright.algorithms.advantages")

_PER_TOKEN = {
    *("rewards", "values", "old_log_prob", "ref_log_prob", "sum_pi_squared", "weights"),
    *("teacher_log_prob", "baseline_to_go", "turn_end", "implicit_reward"),
}
_PER_ROW = {"scores", "reward_baseline", "step_rewards"}
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
    scores: Tensor | None = None,  # [trajectories]: what each earned in all; None: the sum of its rewards
    **inputs: Any,
) -> tuple[Tensor, Tensor]:
    """(advantages, returns) by the estimator of this name, in the shape and type of `rewards`.

    What tensors of tokens hold outside the mask, NaN included, changes nothing.
    """
    entry = registry.get(name)
    inputs = {_ALIASES.get(key, key): value for key, value in inputs.items()}
    kind = f"advantage estimator {name!r}"
    check_matrix(kind, "rewards", rewards)
    check_shape(kind, "mask", mask, rewards.shape)
    work, sampled = working_type(rewards), mask.bool()
    if scores is None:
        # In double precision: attempts that earned the same in another order must not differ by rounding.
        scores = torch.where(sampled, rewards.double(), 0).sum(-1)
    # These four are always there; an estimator takes what it uses.
    given = entry.accepted(rewards=rewards, scores=scores, mask=mask.to(work), group=group) | inputs
    check_names("advantage estimator", entry, given)
    for key, value in given.items():
        if value is None:
            continue
        if key in _KEYS:
            given[key] = keys(value)
            check_rows(kind, key, given[key], len(rewards))
        elif key in _PER_ROW | _PER_TOKEN:
            wide = torch.float64 if key == "scores" else work
            given[key] = torch.as_tensor(value, dtype=wide, device=rewards.device)
            check_shape(kind, key, given[key], rewards.shape if key in _PER_TOKEN else rewards.shape[:1])
        if key in _PER_TOKEN:
            given[key] = torch.where(sampled, given[key], 0)
    found = entry.target(**given)
    check_pair(kind, found, (Tensor, Tensor), "advantages and returns, two tensors")
    advantages, returns = found
    check_shape(kind, "advantages", advantages, rewards.shape)
    check_shape(kind, "returns", returns, rewards.shape)
    return advantages.to(rewards.dtype), returns.to(rewards.dtype)
