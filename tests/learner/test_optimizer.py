"""The learning rate warms up and falls, gradients are clipped, norms and biases do not decay."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from toolwright.config import schema
from toolwright.learner.optimizer import Optimizer, schedule

quick = settings(max_examples=50, deadline=None, derandomize=True)
configs = st.builds(
    schema.OptimizerConfig,
    warmup_steps=st.integers(0, 20),
    decay=st.sampled_from(["constant", "linear", "cosine"]),
    min_lr_ratio=st.floats(0, 1),
)


class TestTheSchedule:
    @given(configs, st.integers(1, 100))
    @quick
    def test_rises_while_warming_up_and_never_after(self, config: schema.OptimizerConfig, total: int) -> None:
        curve = [schedule(update, total, config) for update in range(total + 30)]
        warm = min(config.warmup_steps, len(curve))
        assert all(a < b for a, b in pairwise(curve[:warm]))
        assert all(a >= b - 1e-12 for a, b in pairwise(curve[warm:]))
        assert all(0 < value <= 1 for value in curve[:warm])
        assert all(config.min_lr_ratio - 1e-12 <= value <= 1 for value in curve[warm:])

    @given(configs, st.integers(1, 100))
    @quick
    def test_ends_where_it_should(self, config: schema.OptimizerConfig, total: int) -> None:
        end = schedule(total + config.warmup_steps + 1, total + config.warmup_steps, config)
        assert end == pytest.approx(1.0 if config.decay == "constant" else config.min_lr_ratio)

    def test_schedules_by_example(self) -> None:
        def curve(**changes: Any) -> list[float]:
            config = schema.OptimizerConfig(**changes)
            return [round(schedule(update, 8, config), 4) for update in range(9)]

        assert curve(warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1]
        assert curve(decay="linear") == [1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0]
        assert curve(decay="linear", warmup_steps=4, min_lr_ratio=0.5) == [
            *[0.25, 0.5, 0.75, 1],
            *[1, 0.875, 0.75, 0.625, 0.5],
        ]
        half = round((1 + math.cos(math.pi / 4)) / 2, 4)
        assert curve(decay="cosine")[:5] == [1, 0.9619, half, 0.6913, 0.5]

    def test_is_what_the_optimiser_uses(self) -> None:
        layer = nn.Linear(2, 2)
        optimizer = Optimizer(
            layer, schema.OptimizerConfig(lr=0.1, warmup_steps=2, decay="linear"), total_updates=4
        )
        used = []
        for _ in range(5):
            before = layer.weight.detach().clone()
            layer.weight.grad = torch.ones_like(layer.weight)
            used.append(optimizer.step()["lr"])
            # Adam's first steps along a constant gradient are as long as the learning rate.
            assert torch.allclose(
                before - layer.weight.detach(), torch.tensor(used[-1]), rtol=1e-3, atol=1e-7
            )
        assert used == pytest.approx([0.05, 0.1, 0.1, 0.05, 0.0])


def test_a_gradient_longer_than_the_limit_is_shortened() -> None:
    layer = nn.Linear(3, 3)
    optimizer = Optimizer(layer, schema.OptimizerConfig(max_grad_norm=0.5), total_updates=1)
    for parameter in layer.parameters():
        parameter.grad = torch.full_like(parameter, 10.0)
    metrics = optimizer.step()
    assert metrics["grad_norm"] == pytest.approx(10 * 12**0.5)
    # The first moment is now (1 − β₁) of the gradient that was used.
    used = [state["exp_avg"] / (1 - optimizer.config.betas[0]) for state in optimizer.inner.state.values()]
    assert float(torch.cat([x.flatten() for x in used]).norm()) == pytest.approx(0.5, rel=1e-4)
    assert all(parameter.grad is None for parameter in layer.parameters())


def test_a_gradient_within_the_limit_is_used_as_it_is() -> None:
    layer = nn.Linear(3, 3, bias=False)
    optimizer = Optimizer(layer, schema.OptimizerConfig(max_grad_norm=0.5), total_updates=1)
    gradient = torch.full_like(layer.weight, 0.1)
    layer.weight.grad = gradient.clone()
    assert optimizer.step()["grad_norm"] == pytest.approx(0.3)
    (state,) = optimizer.inner.state.values()
    assert torch.allclose(state["exp_avg"] / (1 - optimizer.config.betas[0]), gradient, rtol=1e-6)


def test_only_matrices_decay() -> None:
    layer = nn.Linear(3, 3)
    nn.init.ones_(layer.weight)
    nn.init.ones_(layer.bias)
    optimizer = Optimizer(layer, schema.OptimizerConfig(lr=0.1, weight_decay=0.5), total_updates=1)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.allclose(layer.weight, torch.tensor(0.95))
    assert torch.equal(layer.bias, torch.ones(3))


def test_a_frozen_parameter_does_not_change() -> None:
    layer = nn.Linear(3, 3)
    layer.bias.requires_grad_(False)
    before = layer.bias.clone()
    optimizer = Optimizer(layer, schema.OptimizerConfig(), total_updates=1)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert torch.equal(layer.bias, before)


def test_it_is_the_adamw_of_torch() -> None:
    mine, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(mine.state_dict())
    config = schema.OptimizerConfig(lr=0.01, weight_decay=0.1, max_grad_norm=1e9)
    optimizer = Optimizer(mine, config, total_updates=100)
    reference = torch.optim.AdamW(
        [{"params": [theirs.weight]}, {"params": [theirs.bias], "weight_decay": 0.0}],
        lr=0.01,
        betas=config.betas,
        weight_decay=0.1,
        fused=True,
    )
    for step in range(6):
        if step == 3:  # what was saved goes on as if nothing had happened
            saved = optimizer.state_dict()
            optimizer = Optimizer(mine, config, total_updates=100)
            optimizer.load_state_dict(saved)
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        for layer in (mine, theirs):
            layer(x).square().sum().backward()
        optimizer.step()
        reference.step()
        reference.zero_grad()
        assert torch.equal(mine.weight, theirs.weight)
        assert torch.equal(mine.bias, theirs.bias)
