"""What a mask hides may be anything: NaN and infinity there change no loss, no gradient and no metric."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from toolwright.algorithms import aggregate, correction, kl, losses, value_loss

from .batches import Example, examples, quick

LOSSES = sorted({losses.registry.get(name).target: name for name in losses.names()}.values())  # one name each
RUBBISH = [torch.nan, torch.inf, -torch.inf]
SELECTIVE: dict[str, dict[str, Any]] = {
    "kl_cov": {"kl_cov_ratio": 0.3},
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 50.0},
}
Found = dict[str, Tensor]


def spoiled(batch: Example, rubbish: float) -> Example:
    """Other numbers in every tensor wherever the mask is 0; without holes in the mask, in padding alone."""
    tensors: dict[str, Any] = {
        key: torch.where(batch.mask == 0, rubbish, value)
        for key, value in vars(batch).items()
        if isinstance(value, Tensor) and key != "mask"
    }
    return dataclasses.replace(batch, **tensors)


def assert_unchanged(found: Found, wanted: Found) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert value.isfinite().all(), name
        assert torch.equal(found[name], value), name


def of_loss(name: str, mode: str, batch: Example) -> Found:
    leaf = batch.log_prob.clone().requires_grad_()
    given: dict[str, Any] = {
        "old_log_prob": batch.old_log_prob,
        "advantages": batch.advantages,
        "mask": batch.mask,
        **SELECTIVE.get(name, {}),
    }
    prepared = losses.prepare(name, log_prob=leaf.detach(), **given)
    loss, metrics = losses.compute(
        name, log_prob=leaf, aggregate=mode, norm_tokens=10, weights=batch.weights, **prepared, **given
    )
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert not gradient[batch.mask == 0].any()
    return {**metrics, **prepared, "loss": loss.detach(), "gradient": gradient}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("mode", aggregate.names())
@quick
@given(batch=examples())
def test_losses(name: str, mode: str, batch: Example) -> None:
    wanted = of_loss(name, mode, batch)
    for rubbish in RUBBISH:
        assert_unchanged(of_loss(name, mode, spoiled(batch, rubbish)), wanted)


@pytest.mark.parametrize("name", kl.names())
@quick
@given(batch=examples())
def test_the_pull_of_the_reference(name: str, batch: Example) -> None:
    def found(batch: Example) -> Found:
        leaf = batch.log_prob.clone().requires_grad_()
        away = kl.compute(name, leaf, batch.values, batch.mask, old_log_prob=batch.old_log_prob)
        loss = aggregate.compute("token-mean", away, batch.mask)
        return {"kl": away.detach(), "gradient": torch.autograd.grad(loss, leaf)[0]}

    for rubbish in RUBBISH:
        assert_unchanged(found(spoiled(batch, rubbish)), found(batch))


@pytest.mark.parametrize(("mode", "level"), itertools.product(correction.MODES, correction.LEVELS), ids=str)
@quick
@given(batch=examples())
def test_correction(mode: str, level: str, batch: Example) -> None:
    def found(batch: Example) -> Found:
        weights, metrics = correction.compute(
            old_log_prob=batch.log_prob,
            sampled_log_prob=batch.old_log_prob,
            mask=batch.mask,
            mode=mode,
            level=level,
            low=0.5,
            high=1.5,
        )
        return {**metrics, "weights": weights}

    for rubbish in RUBBISH:
        assert_unchanged(found(spoiled(batch, rubbish)), found(batch))


@quick
@given(batch=examples())
def test_the_value_loss(batch: Example) -> None:
    def found(batch: Example) -> Found:
        leaf = batch.values.clone().requires_grad_()
        loss, metrics = value_loss.compute(
            values=leaf, old_values=batch.log_prob, returns=batch.advantages, mask=batch.mask
        )
        return {**metrics, "loss": loss.detach(), "gradient": torch.autograd.grad(loss, leaf)[0]}

    for rubbish in RUBBISH:
        assert_unchanged(found(spoiled(batch, rubbish)), found(batch))
