"""Estimates of the KL divergence, their gradients, and the coefficient that adapts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolwright.algorithms import kl
from toolwright.failures import UserError

from .batches import quick

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


@pytest.mark.parametrize("name", ["k1", "k3", "k1+", "k3+"])
def test_k1_and_k3_are_the_kl_in_expectation(name: str) -> None:
    estimate = (POLICY * kl.compute(name, POLICY.log(), REFERENCE.log())).sum()
    torch.testing.assert_close(estimate, (POLICY * (POLICY / REFERENCE).log()).sum())


@pytest.mark.parametrize("name", ["k2", "k1+", "k3+", "abs+"])
def test_k2_and_every_straight_through_form_have_the_gradient_of_the_kl(name: str) -> None:
    logits = POLICY.log().requires_grad_()
    log_prob = logits.log_softmax(-1)
    exact = (log_prob.exp() * (log_prob - REFERENCE.log())).sum()
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = (POLICY * kl.compute(name, log_prob, REFERENCE.log())).sum()
    torch.testing.assert_close(torch.autograd.grad(sampled, logits)[0], expected)


def test_unbiased_is_the_kl_and_its_gradient_whoever_sampled() -> None:
    """Every token once, weighed by how often the old policy samples it."""
    old = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    logits = POLICY.log().requires_grad_()
    log_prob = logits.log_softmax(-1)
    exact = (log_prob.exp() * (log_prob - REFERENCE.log())).sum()
    (slope,) = torch.autograd.grad(exact, logits, retain_graph=True)
    gradients = {}
    for name in ("unbiased", "k2", "k3", "k3+"):
        value = kl.compute(name, log_prob, REFERENCE.log(), old_log_prob=old.log())
        (gradients[name],) = torch.autograd.grad((old * value).sum(), logits, retain_graph=True)
    unbiased = kl.compute("unbiased", log_prob, REFERENCE.log(), old_log_prob=old.log())
    torch.testing.assert_close((old * unbiased).sum(), exact)
    torch.testing.assert_close(gradients.pop("unbiased"), slope)
    assert all((gradient - slope).abs().max() > 0.01 for gradient in gradients.values())


def test_unbiased_is_the_gradient_of_the_weighted_k3_through_both_factors() -> None:
    log_prob = torch.linspace(-3, 0, 7, dtype=torch.float64, requires_grad=True)
    old, reference = torch.full_like(log_prob, -1.3), torch.full_like(log_prob, -1.9)
    difference = log_prob - reference
    product = (log_prob - old).exp() * (torch.exp(-difference) + difference - 1)
    ours = kl.compute("unbiased", log_prob, reference, old_log_prob=old)
    torch.testing.assert_close(ours, product)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), log_prob)[0] for x in (ours, product)))


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "kl", "mse", "low_var_kl"])
@quick
@given(gap=st.floats(-30, 30))
def test_a_straight_through_form_has_the_value_of_its_estimator_and_the_gradient_of_k2(
    name: str, gap: float
) -> None:
    log_prob = torch.tensor([gap - 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([-1.0], dtype=torch.float64)
    straight = kl.compute(f"{name}+", log_prob, reference)
    torch.testing.assert_close(straight.detach(), kl.compute(name, log_prob, reference).detach())
    torch.testing.assert_close(torch.autograd.grad(straight, log_prob)[0], (log_prob - reference).detach())


@quick
@given(gap=st.floats(-1e4, 1e4))
def test_k3_is_never_negative_and_never_overflows(gap: float) -> None:
    log_prob = torch.tensor([gap], requires_grad=True)
    value = kl.compute("k3", log_prob, torch.zeros(1))
    assert 0 <= value <= 10
    assert torch.autograd.grad(value, log_prob)[0].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_float_type_that_goes_in_comes_out(dtype: torch.dtype) -> None:
    assert kl.compute("k3", POLICY.log().to(dtype), REFERENCE.log()).dtype == dtype


def test_an_unknown_estimator_is_reported() -> None:
    with pytest.raises(UserError, match=r"unknown KL estimator 'k4'"):
        kl.compute("k4", POLICY, REFERENCE)
    with pytest.raises(UserError, match=r"ref_log_prob has shape \[2\], expected \[3\]"):
        kl.compute("k1", POLICY, REFERENCE[:2])


def test_the_coefficient_grows_while_the_kl_is_above_its_target_and_shrinks_below() -> None:
    def adapted(observed: float) -> float:
        return kl.adapt(0.1, observed=observed, target=0.5, horizon=1000, trajectories=100)

    assert adapted(0.5) == 0.1
    assert adapted(float("nan")) == adapted(float("inf")) == 0.1  # of an update that was skipped
    assert adapted(0.55) == pytest.approx(0.1 * (1 + 0.1 * 0.1))
    assert adapted(0.45) == pytest.approx(0.1 * (1 - 0.1 * 0.1))


def test_one_wild_observation_moves_the_coefficient_by_no_more_than_a_fifth_of_the_horizon() -> None:
    moved = kl.adapt(0.1, observed=1e9, target=0.5, horizon=1000, trajectories=100)
    assert moved == pytest.approx(0.1 * 1.02)
