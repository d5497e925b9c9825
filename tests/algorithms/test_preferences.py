"""Preference losses against the papers, written down a second time in double precision."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import preferences
from toolwright.failures import UserError

ROWS = 6
PARAMS: dict[str, dict[str, Any]] = {
    "dpo": {"beta": 0.3, "label_smoothing": 0.1},
    "kto": {"beta": 0.2, "desirable_weight": 1.3, "undesirable_weight": 0.7},
    "orpo": {"weight": 0.4},
}


def numbers(seed: int = 0) -> dict[str, Tensor]:
    """Sequences in twos, of very different lengths."""
    generator = torch.Generator().manual_seed(seed)
    length = torch.randint(1, 60, (2 * ROWS,), generator=generator).double()
    log_prob = -length * torch.rand(2 * ROWS, generator=generator).double() * 2 - 0.01
    return {
        "log_prob": log_prob,
        "ref_log_prob": log_prob + torch.randn(2 * ROWS, generator=generator).double() * 3,
        "length": length,
        "label": torch.tensor([1.0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0]).double(),
    }


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def by_paper(name: str, given: dict[str, Tensor]) -> float:
    """Plain Python, a row after the other."""
    at = {key: value.tolist() for key, value in given.items()}
    params, losses = PARAMS[name], []
    ratio = [p - r for p, r in zip(at["log_prob"], at["ref_log_prob"], strict=True)]
    for row in range(ROWS):
        one, two = 2 * row, 2 * row + 1
        if name == "dpo":  # 2305.18290, equation 7, with smoothed labels
            h, smoothing = params["beta"] * (ratio[one] - ratio[two]), params["label_smoothing"]
            losses.append(-(1 - smoothing) * math.log(sigmoid(h)) - smoothing * math.log(sigmoid(-h)))
        elif name == "kto":  # 2402.01306, equation 8
            z = max(0.0, sum(ratio[1::2]) / ROWS)
            if at["label"][one]:
                value = params["desirable_weight"] * sigmoid(params["beta"] * (ratio[one] - z))
                losses.append(params["desirable_weight"] - value)
            else:
                value = params["undesirable_weight"] * sigmoid(params["beta"] * (z - ratio[one]))
                losses.append(params["undesirable_weight"] - value)
        else:  # 2403.07691, equations 3 to 7
            p = [math.exp(at["log_prob"][i] / at["length"][i]) for i in (one, two)]
            odds = [likelihood / (1 - likelihood) for likelihood in p]
            losses.append(-math.log(p[0]) - params["weight"] * math.log(sigmoid(math.log(odds[0] / odds[1]))))
    return sum(losses) / ROWS


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(PARAMS))
def test_loss_is_the_paper_s(name: str, seed: int) -> None:
    given = numbers(seed)
    loss, _ = preferences.compute(name, **given, **PARAMS[name])
    assert loss.item() == pytest.approx(by_paper(name, given), rel=1e-12)


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_gradient_is_the_slope_of_the_paper_s_loss(name: str) -> None:
    """By differences of two losses. The distance that KTO compares with has no gradient."""
    given = numbers()
    log_prob = given["log_prob"].clone().requires_grad_()
    loss, _ = preferences.compute(name, **{**given, "log_prob": log_prob}, **PARAMS[name])
    [slope] = torch.autograd.grad(loss, log_prob)
    for place in range(2 * ROWS):
        if name == "kto" and place % 2:
            assert slope[place] == 0
            continue
        step = torch.zeros_like(given["log_prob"])
        step[place] = 1e-5
        higher, lower = (
            by_paper(name, {**given, "log_prob": given["log_prob"] + sign * step}) for sign in (1, -1)
        )
        assert float(slope[place]) == pytest.approx((higher - lower) / 2e-5, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_accuracy_and_margin_follow_the_labels(name: str) -> None:
    given = numbers()
    reference = torch.zeros(2 * ROWS).double()
    good = torch.tensor([1.0, 0.0] * ROWS).double()
    agreed = {**given, "ref_log_prob": reference, "label": torch.ones(2 * ROWS).double()}
    agreed["length"] = torch.full((2 * ROWS,), 4.0).double()
    _, metrics = preferences.compute(name, **{**agreed, "log_prob": good - 2}, **PARAMS[name])
    assert metrics["accuracy"] == (0 if name == "kto" else 1)  # less likely than by the reference
    if name == "kto":
        agreed["ref_log_prob"] = torch.full_like(reference, -4.0)
        given_good = torch.where(good > 0, -1.0, -4.0).double()
        _, metrics = preferences.compute(name, **{**agreed, "log_prob": given_good}, **PARAMS[name])
        assert metrics["accuracy"] == 1
    assert metrics["margin"] > 0


@pytest.mark.parametrize("name", ["dpo", "kto"])
def test_a_policy_that_is_its_own_reference_agrees_by_chance(name: str) -> None:
    given = numbers()
    _, metrics = preferences.compute(name, **{**given, "ref_log_prob": given["log_prob"]}, **PARAMS[name])
    assert metrics["accuracy"] == 0.5


def test_orpo_survives_an_answer_that_is_certain() -> None:
    log_prob = torch.tensor([0.0, -3.0]).double().requires_grad_()
    loss, _ = preferences.compute(
        "orpo", log_prob=log_prob, length=torch.ones(2).double(), label=torch.ones(2)
    )
    loss.backward()
    assert loss.isfinite()
    assert log_prob.grad is not None
    assert log_prob.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "params", "said"),
    [
        ("dpo", {"beta": 0.0}, "beta"),
        ("dpo", {"bata": 0.1}, "did you mean 'beta'"),
        ("dpo", {"label_smoothing": 0.6}, "label_smoothing"),
        ("kto", {"beta": -1.0}, "beta"),
        ("orpo", {"weight": -1.0}, "weight"),
    ],
)
def test_settings_that_cannot_work_are_named(name: str, params: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        preferences.check_params(name, params)
