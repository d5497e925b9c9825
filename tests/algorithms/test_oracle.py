"""Our numbers are verl's and verl-agent's to 1e-5, but for the places where those are wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import advantages, aggregate, correction, kl, losses, value_loss

from .oracle import cases

# verl's name for a loss, and ours.
OURS = {"vanilla": "ppo", "geo_mean": "gmpo"}


def assert_agree(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def estimate(case: dict[str, Any], name: str, **params: Any) -> tuple[Tensor, Tensor]:
    inputs = dict(case["inputs"])
    inputs["group"] = inputs.pop("index")
    if "reward_baselines" in inputs:
        inputs["reward_baseline"] = torch.tensor(inputs.pop("reward_baselines"))
    return advantages.compute(name, **inputs, **params)


@pytest.mark.parametrize("case", cases("advantages"))
def test_advantages_agree(case: dict[str, Any]) -> None:
    ours, returns = estimate(case, case["estimator"], **case["params"])
    theirs, their_returns = case["advantages"], case["returns"]
    if case["estimator"] == "gae":
        # verl leaves −mean/std on masked tokens, and the critic's value in their returns.
        theirs, their_returns = (x * case["inputs"]["mask"] for x in (theirs, their_returns))
    if case["estimator"] == "rloo":
        # verl gives a lone member its raw score.
        index = case["inputs"]["index"]
        lone = torch.tensor([index.count(group) == 1 for group in index])
        assert lone.any()
        assert not torch.equal(theirs[lone], torch.zeros_like(theirs[lone]))
        theirs, their_returns = (torch.where(lone[:, None], 0.0, x) for x in (theirs, their_returns))
    assert_agree(ours, theirs)
    assert_agree(returns, their_returns)


@pytest.mark.parametrize("case", [c for c in cases("advantages") if c.values[0]["case"] == "dr_grpo"])
def test_dr_grpo_is_grpo_without_std(case: dict[str, Any]) -> None:
    assert_agree(estimate(case, "dr_grpo")[0], case["advantages"])


@pytest.mark.parametrize("case", cases("losses"))
def test_losses_and_their_gradients_agree(case: dict[str, Any]) -> None:
    inputs = dict(case["inputs"])
    log_prob = inputs.pop("log_prob").requires_grad_()
    weights = inputs.pop("rollout_is_weights")
    name = OURS.get(case["loss"], case["loss"])
    loss, _ = losses.compute(
        name, log_prob=log_prob, aggregate=case["aggregate"], weights=weights, **inputs, **case["params"]
    )
    (gradient,) = torch.autograd.grad(loss, log_prob)
    assert_agree(loss.detach(), torch.tensor(float(case["value"])))
    assert_agree(gradient, case["grad"])


@pytest.mark.parametrize("case", cases("kl"))
def test_kl_estimates_agree(case: dict[str, Any]) -> None:
    alias = {"k1": "kl", "abs": "abs", "k2": "mse", "k3": "low_var_kl"}[case["case"]]
    for name in (case["case"], alias):
        assert_agree(kl.compute(name, case["log_prob"], case["ref_log_prob"]), case["value"])


@pytest.mark.parametrize("case", cases("corrections"))
def test_corrections_agree(case: dict[str, Any]) -> None:
    """verl's weights, and the mask that its rejection leaves. Its `k1` bounds the inverse of our ratio, its
    `seq_max_k2` half the square of its logarithm: the bounds here are those, turned over."""
    weights, _ = correction.compute(**case["inputs"], **case["params"])
    assert_agree(weights, case["weights"])
    if case["params"]["mode"] != "truncate":
        assert not weights[case["inputs"]["mask"] == 1].all(), "some are left out"


@pytest.mark.parametrize("case", cases("aggregate"))
def test_aggregation_agrees(case: dict[str, Any]) -> None:
    ours = aggregate.compute(case["mode"], case["values"], case["mask"])
    assert_agree(ours, torch.tensor(float(case["result"])))


@pytest.mark.parametrize("case", cases("value_loss"))
def test_the_value_loss_agrees(case: dict[str, Any]) -> None:
    inputs = {key: case[key] for key in ("values", "old_values", "returns", "mask")}
    loss, metrics = value_loss.compute(**inputs, clip_value=0.2)
    assert_agree(loss, torch.tensor(float(case["value"])))
    assert_agree(metrics["clip_fraction"], torch.tensor(float(case["clip_fraction"])))


@pytest.mark.parametrize("case", cases("gigpo"))
def test_gigpo_over_step_rows_agrees_with_verl_agent(case: dict[str, Any]) -> None:
    assert_agree(estimate(case, "gigpo", **case["params"])[0], case["advantages"])
