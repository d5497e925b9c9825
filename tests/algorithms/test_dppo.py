"""DPPO by hand: tokens are silenced by the distance of probabilities, whatever the ratio."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import losses


def gradient(name: str, *, old: list[float], new: list[float], advantage: float, **params: Any) -> Tensor:
    """∂ loss / ∂ log π of each token, times the number of tokens."""
    log_prob = torch.tensor([new], dtype=torch.float64).log().requires_grad_()
    loss, _ = losses.compute(
        name,
        log_prob=log_prob,
        old_log_prob=torch.tensor([old], dtype=torch.float64).log(),
        advantages=torch.full((1, len(old)), advantage, dtype=torch.float64),
        mask=torch.ones(1, len(old)),
        **params,
    )
    loss.backward()
    assert log_prob.grad is not None
    return log_prob.grad[0] * len(old)


def test_a_rare_token_is_learned_from_whatever_its_ratio() -> None:
    # Ratio 5, moved by 0.004; ratio 1.25, moved by 0.16.
    ours = gradient("dppo_tv", old=[0.001, 0.64], new=[0.005, 0.8], advantage=1.0)
    torch.testing.assert_close(ours, torch.tensor([-5.0, 0.0], dtype=torch.float64))


def test_a_token_that_moved_against_its_advantage_is_still_corrected() -> None:
    ours = gradient("dppo_tv", old=[0.8, 0.2], new=[0.4, 0.6], advantage=1.0)
    torch.testing.assert_close(ours, torch.tensor([-0.5, 0.0], dtype=torch.float64))
    ours = gradient("dppo_tv", old=[0.8, 0.2], new=[0.4, 0.6], advantage=-1.0)
    torch.testing.assert_close(ours, torch.tensor([0.0, 3.0], dtype=torch.float64))


def test_ratios_are_capped_as_weights() -> None:
    ours = gradient("dppo_tv", old=[0.001], new=[0.1], advantage=1.0, clip_c=20.0)
    torch.testing.assert_close(ours, torch.tensor([-20.0], dtype=torch.float64))


def test_by_kl_the_distance_is_that_of_two_outcomes() -> None:
    # KL of (0.5, 0.5) to (0.6, 0.4): 0.5 ln(0.5/0.6) + 0.5 ln(0.5/0.4) = 0.02041.
    kept = gradient("dppo_kl", old=[0.5], new=[0.6], advantage=1.0, clip_high=0.0205)
    silenced = gradient("dppo_kl", old=[0.5], new=[0.6], advantage=1.0, clip_high=0.0203)
    assert kept.item() == pytest.approx(-1.2)
    assert silenced.item() == 0.0
    assert gradient("dppo_kl", old=[0.5], new=[0.6], advantage=-1.0, clip_low=0.0).item() == pytest.approx(
        1.2
    )
