"""What the whole distribution says of a token."""

from __future__ import annotations

import math

import torch

from toolwright.algorithms.entropy import entropy, sum_pi_squared


def test_the_entropy_of_a_uniform_choice_is_the_logarithm_of_its_size() -> None:
    torch.testing.assert_close(entropy(torch.zeros(2, 8)), torch.full((2,), math.log(8)))


def test_a_token_that_cannot_be_sampled_adds_nothing() -> None:
    logits = torch.tensor([0.0, 0.0, -torch.inf], requires_grad=True)
    value = entropy(logits)
    torch.testing.assert_close(value.detach(), torch.tensor(math.log(2)))
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


def test_the_sum_of_squared_probabilities() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(sum_pi_squared(logits), logits.softmax(-1).square().sum(-1))
