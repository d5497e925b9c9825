"""The critic's loss."""

from __future__ import annotations

import pytest
import torch

from toolwright.algorithms import value_loss
from toolwright.failures import UserError


def loss(value: float, old: float, target: float, clip_value: float | None = 0.2) -> tuple[float, float]:
    values = torch.tensor([[value]], requires_grad=True)
    result, _ = value_loss.compute(
        values=values,
        old_values=torch.tensor([[old]]),
        returns=torch.tensor([[target]]),
        mask=torch.ones(1, 1),
        clip_value=clip_value,
    )
    return float(result.detach()), float(torch.autograd.grad(result, values)[0])


def test_within_the_clip_it_is_half_the_squared_error() -> None:
    value, gradient = loss(0.1, old=0.0, target=1.0)
    assert value == pytest.approx(0.5 * 0.9**2)
    assert gradient == pytest.approx(-0.9)


def test_a_value_that_moved_past_the_clip_towards_its_target_is_not_pulled_further() -> None:
    value, gradient = loss(0.5, old=0.0, target=1.0)
    assert value == pytest.approx(0.5 * 0.8**2)
    assert gradient == 0


def test_a_value_that_moved_away_is_still_pulled_back() -> None:
    assert loss(-0.5, old=0.0, target=1.0)[1] == pytest.approx(-1.5)


def test_without_a_clip_nothing_is_held() -> None:
    assert loss(0.5, old=0.0, target=1.0, clip_value=None)[1] == pytest.approx(-0.5)


def test_masked_values_may_hold_anything() -> None:
    mask = torch.tensor([[1.0, 0.0]])
    rows = torch.tensor([[0.1, torch.nan]])
    result, metrics = value_loss.compute(
        values=rows, old_values=torch.zeros(1, 2), returns=torch.ones(1, 2), mask=mask
    )
    assert float(result) == pytest.approx(0.5 * 0.9**2)
    assert float(metrics["value_mean"]) == pytest.approx(0.1)


def test_a_wrong_shape_is_named() -> None:
    ones = torch.ones(2, 2)
    with pytest.raises(UserError, match=r"value loss: returns has shape \[2\], expected \[2, 2\]"):
        value_loss.compute(values=ones, old_values=ones, returns=torch.ones(2), mask=ones)
