"""A denominator is an argument: cutting a batch into parts changes neither the loss nor its gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from toolwright.algorithms import aggregate, losses, value_loss
from toolwright.algorithms.aggregate import Totals
from toolwright.failures import UserError

from .batches import Example, example, examples, quick

# One name of each.
LOSSES = sorted({losses.registry.get(name).target: name for name in losses.names()}.values())
AGGREGATIONS = aggregate.names()
SPLITS = [1, 2, 3, 7]
# Enough chosen tokens that each part of a batch holds some, and some parts none.
SELECTIVE: dict[str, dict[str, Any]] = {
    "kl_cov": {"kl_cov_ratio": 0.3},
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 50.0},
}


def parts(rows: int, count: int) -> list[list[int]]:
    """Every `count`-th row: parts of uneven size, some empty where there are fewer rows."""
    return [list(range(start, rows, count)) for start in range(count)]


def loss_and_gradient(
    name: str, batch: Example, rows: list[int], **more: Any
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    # A part is padded to its own longest sequence, as micro-batches are.
    used = batch.mask[rows].any(0).nonzero()
    width = int(used.max()) + 1 if len(used) else 1
    leaf = batch.log_prob[rows, :width].clone().requires_grad_()
    cut: dict[str, Any] = {
        key: value[rows, :width] if isinstance(value, Tensor) else value for key, value in more.items()
    }
    loss, metrics = losses.compute(
        name,
        old_log_prob=batch.old_log_prob[rows, :width],
        log_prob=leaf,
        advantages=batch.advantages[rows, :width],
        mask=batch.mask[rows, :width],
        **cut,
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), torch.nn.functional.pad(gradient, (0, batch.mask.shape[1] - width)), metrics


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", AGGREGATIONS)
@settings(quick, max_examples=10)
@given(batch=examples(), weighted=st.booleans())
def test_losses_gradients_and_metrics_of_parts_sum_to_those_of_the_whole(
    name: str, mode: str, batch: Example, weighted: bool
) -> None:
    params = SELECTIVE.get(name, {})
    shared = {"aggregate": mode, "norm_tokens": 10, **params}
    if weighted:
        shared["weights"] = batch.weights
    everything = list(range(len(batch.mask)))
    whole, gradient, metrics = loss_and_gradient(name, batch, everything, **shared)
    prepared = losses.prepare(
        name,
        old_log_prob=batch.old_log_prob,
        log_prob=batch.log_prob,
        advantages=batch.advantages,
        mask=batch.mask,
        **params,
    )
    totals = Totals.of(batch.mask)
    for count in SPLITS:
        pieces = [rows for rows in parts(len(batch.mask), count) if rows]
        done = [loss_and_gradient(name, batch, rows, totals=totals, **prepared, **shared) for rows in pieces]
        torch.testing.assert_close(sum(loss for loss, _, _ in done), whole, atol=1e-6, rtol=1e-6)
        joined = torch.zeros_like(gradient)
        for rows, (_, part, _) in zip(pieces, done, strict=True):
            joined[rows] = part
        torch.testing.assert_close(joined, gradient, atol=1e-6, rtol=1e-6)
        for key, value in metrics.items():
            torch.testing.assert_close(sum(m[key] for _, _, m in done), value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("mode", AGGREGATIONS)
@quick
@given(batch=examples())
def test_the_value_loss_of_parts_sums_to_that_of_the_whole(mode: str, batch: Example) -> None:
    def loss(rows: list[int], totals: Totals | None) -> tuple[Tensor, Tensor]:
        values = batch.values[rows].clone().requires_grad_()
        value, _ = value_loss.compute(
            values=values,
            old_values=batch.values[rows] + batch.advantages[rows],
            returns=batch.weights[rows],
            mask=batch.mask[rows],
            aggregate=mode,
            totals=totals,
            norm_tokens=10,
        )
        return value.detach(), torch.autograd.grad(value, values)[0]

    whole, gradient = loss(list(range(len(batch.mask))), None)
    for count in SPLITS:
        pieces = [rows for rows in parts(len(batch.mask), count) if rows]
        done = [loss(rows, Totals.of(batch.mask)) for rows in pieces]
        torch.testing.assert_close(sum(part for part, _ in done), whole, atol=1e-6, rtol=1e-6)
        for rows, (_, part) in zip(pieces, done, strict=True):
            torch.testing.assert_close(part, gradient[rows], atol=1e-6, rtol=1e-6)


@quick
@given(batch=examples())
def test_totals_of_parts_add_up(batch: Example) -> None:
    counted = [Totals.of(batch.mask[rows]) for rows in parts(len(batch.mask), 3)]
    assert sum(counted[1:], counted[0]) == Totals.of(batch.mask)


def test_without_totals_the_parts_do_not_add_up() -> None:
    batch = example(seed=4, rows=6, width=6)
    pieces = parts(6, 2)
    whole, _, _ = loss_and_gradient("ppo", batch, list(range(6)))
    first, second = (loss_and_gradient("ppo", batch, rows)[0] for rows in pieces)
    assert not torch.isclose(first + second, whole)


def test_the_constant_of_dr_grpo_must_be_told_where_parts_have_widths_of_their_own() -> None:
    values = torch.ones(2, 3)
    with pytest.raises(UserError, match="seq-mean-token-sum-norm needs norm_tokens if totals are given"):
        aggregate.compute("seq-mean-token-sum-norm", values, values, totals=Totals(6, 2))
    assert aggregate.compute("seq-mean-token-sum-norm", values, values) == 1
    assert aggregate.compute("seq-mean-token-sum-norm", values, values, norm_tokens=6) == 0.5
