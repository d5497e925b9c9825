"""What every policy loss promises, and what each of them means."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor

from toolwright.algorithms import losses
from toolwright.failures import UserError

from .batches import Example, example, examples, quick

ALL = losses.names()


def loss_of(name: str, batch: Example, **more: Any) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Loss, gradient with respect to the log-probabilities, metrics."""
    leaf = batch.log_prob.clone().requires_grad_()
    loss, metrics = losses.compute(
        name,
        old_log_prob=batch.old_log_prob,
        log_prob=leaf,
        advantages=batch.advantages,
        mask=batch.mask,
        **more,
    )
    return loss.detach(), torch.autograd.grad(loss, leaf)[0], metrics


def tokens(ratio: list[float], advantage: list[float]) -> Example:
    """One sequence with these ratios and advantages."""
    old = torch.full((1, len(ratio)), -1.0, dtype=torch.float64)
    return dataclasses.replace(
        example(seed=0, rows=1, width=len(ratio)),
        mask=torch.ones_like(old),
        old_log_prob=old,
        log_prob=old + torch.tensor([ratio], dtype=torch.float64).log(),
        advantages=torch.tensor([advantage], dtype=torch.float64),
    )


@pytest.mark.parametrize("name", ALL)
@quick
@given(batch=examples())
def test_a_masked_token_has_no_gradient_and_may_hold_anything(name: str, batch: Example) -> None:
    loss, gradient, _ = loss_of(name, batch, weights=batch.weights)
    assert (gradient[batch.mask == 0] == 0).all()
    spoiled: dict[str, Any] = {
        key: torch.where(batch.mask == 0, torch.nan, getattr(batch, key))
        for key in ("log_prob", "old_log_prob", "advantages", "weights")
    }
    dirty = dataclasses.replace(batch, **spoiled)
    same, same_gradient, metrics = loss_of(name, dirty, weights=dirty.weights)
    torch.testing.assert_close(same, loss)
    torch.testing.assert_close(same_gradient, gradient)
    assert all(value.isfinite() for value in metrics.values())


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(name: str) -> None:
    batch = example(seed=2, rows=5, width=5)
    wide: dict[str, Any] = {
        key: torch.nn.functional.pad(value, (0, 3))
        for key, value in vars(batch).items()
        if isinstance(value, Tensor)
    }
    loss, gradient, _ = loss_of(name, batch)
    padded, padded_gradient, _ = loss_of(name, dataclasses.replace(batch, **wide))
    torch.testing.assert_close(padded, loss)
    torch.testing.assert_close(padded_gradient[:, :5], gradient)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_float_type_that_goes_in_comes_out(name: str, dtype: torch.dtype) -> None:
    batch = example(seed=3, rows=6, width=5)
    narrow = dataclasses.replace(
        batch, **{key: getattr(batch, key).to(dtype) for key in ("log_prob", "old_log_prob", "advantages")}
    )
    loss, gradient, _ = loss_of(name, narrow)
    assert loss.dtype == gradient.dtype == dtype
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mask_type", [torch.bool, torch.int64])
def test_a_mask_may_be_of_any_type(name: str, mask_type: torch.dtype) -> None:
    batch = example(seed=3, rows=6, width=5)
    typed = dataclasses.replace(batch, mask=batch.mask.to(mask_type))
    loss, gradient, _ = loss_of(name, typed)
    assert torch.equal(loss, loss_of(name, batch)[0])
    assert torch.equal(gradient, loss_of(name, batch)[1])


@pytest.mark.parametrize("name", ALL)
def test_metrics_are_detached_scalars(name: str) -> None:
    _, _, metrics = loss_of(name, example(seed=3, rows=6, width=5))
    for value in metrics.values():
        assert value.ndim == 0
        assert not value.requires_grad


@pytest.mark.parametrize("name", ALL)
def test_importance_weights_multiply_each_tokens_loss(name: str) -> None:
    batch = example(seed=6, rows=6, width=5)
    loss, gradient, _ = loss_of(name, batch, aggregate="seq-mean-token-sum")
    ones = torch.ones_like(batch.mask)
    same, same_gradient, _ = loss_of(name, batch, aggregate="seq-mean-token-sum", weights=ones)
    torch.testing.assert_close(same, loss)
    torch.testing.assert_close(same_gradient, gradient)
    double, double_gradient, _ = loss_of(name, batch, aggregate="seq-mean-token-sum", weights=2 * ones)
    torch.testing.assert_close(double, 2 * loss)
    torch.testing.assert_close(double_gradient, 2 * gradient)
    ones[0] = 0
    _, silenced, _ = loss_of(name, batch, aggregate="seq-mean-token-sum", weights=ones)
    assert not silenced[0].any()
    torch.testing.assert_close(silenced[1:], gradient[1:])


@pytest.mark.parametrize("name", ["ppo", "cispo", "sapo", "gpg", "reinforce", "kl_cov"])
def test_on_fresh_samples_a_token_loss_is_the_policy_gradient(name: str) -> None:
    batch = example(seed=8, rows=6, width=5)
    fresh = dataclasses.replace(batch, old_log_prob=batch.log_prob)
    _, gradient, _ = loss_of(name, fresh)
    torch.testing.assert_close(gradient, -batch.advantages * batch.mask / batch.mask.sum())


def test_on_fresh_samples_a_sequence_loss_is_the_policy_gradient_of_sequences() -> None:
    batch = example(seed=8, rows=6, width=5)
    advantages = batch.advantages[:, :1].expand_as(batch.mask)
    fresh = dataclasses.replace(batch, old_log_prob=batch.log_prob, advantages=advantages)
    expected = -advantages * batch.mask / batch.mask.sum(-1, keepdim=True) / 6
    for name in ("gspo", "gmpo"):
        _, gradient, _ = loss_of(name, fresh, aggregate="seq-mean-token-mean")
        torch.testing.assert_close(gradient, expected)
    _, gradient, _ = loss_of("sppo", fresh, eta=0.5)
    torch.testing.assert_close(gradient, -advantages * batch.mask / 6)


@pytest.mark.parametrize("name", ALL)
def test_every_loss_makes_what_went_better_likelier(name: str) -> None:
    # Four actions, one of them good; four updates on each set of samples.
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(4, requires_grad=True)
    params: dict[str, Any] = {"clip_low": 0.2, "clip_high": 0.28} if name == "gspo" else {}
    for _ in range(15):
        actions = torch.multinomial(logits.detach().softmax(-1), 64, replacement=True, generator=generator)
        old = logits.detach().log_softmax(-1)[actions][:, None]
        rewards = (actions == 2).float()[:, None]
        for _ in range(4):
            loss, _ = losses.compute(
                name,
                old_log_prob=old,
                log_prob=logits.log_softmax(-1)[actions][:, None],
                advantages=rewards - rewards.mean(),
                mask=torch.ones(64, 1),
                **params,
            )
            (gradient,) = torch.autograd.grad(loss, logits)
            logits = (logits - 0.5 * gradient).detach().requires_grad_()
    assert logits.softmax(-1)[2] > 0.5


def test_ppo_stops_at_its_own_bound_on_each_side() -> None:
    batch = tokens(ratio=[1.27, 1.29, 0.81, 0.79], advantage=[1.0, 1.0, -1.0, -1.0])
    _, gradient, metrics = loss_of("ppo", batch, clip_low=0.2, clip_high=0.28)
    assert gradient[0, 0] != 0
    assert gradient[0, 1] == 0
    assert gradient[0, 2] != 0
    assert gradient[0, 3] == 0
    assert metrics["clip_fraction_high"] == metrics["clip_fraction_low"] == 0.25
    assert metrics["clip_fraction"] == 0.5


def test_ppo_does_not_clip_a_step_back() -> None:
    batch = tokens(ratio=[0.5, 2.0], advantage=[1.0, -1.0])
    _, gradient, metrics = loss_of("ppo", batch)
    assert (gradient != 0).all()
    assert metrics["clip_fraction"] == 0


def test_dual_clip_caps_the_loss_of_a_bad_token_that_became_likely() -> None:
    batch = tokens(ratio=[5.0], advantage=[-1.0])
    loss, gradient, metrics = loss_of("ppo", batch, clip_c=3.0)
    assert loss == 3
    assert gradient == 0
    assert metrics["dual_clip_fraction"] == 1
    unbound, _, _ = loss_of("ppo", batch, clip_c=None)
    assert unbound > loss
    with pytest.raises(UserError, match="clip_c=1 must be above 1"):
        loss_of("ppo", batch, clip_c=1)


def test_gspo_clips_a_sequence_as_one() -> None:
    # The geometric mean of 2 and ½ is 1: nothing is clipped, where PPO would clip one token.
    batch = tokens(ratio=[2.0, 0.5], advantage=[1.0, 1.0])
    _, gradient, metrics = loss_of("gspo", batch)
    assert metrics["clip_fraction"] == 0
    torch.testing.assert_close(gradient, torch.full_like(gradient, -0.5))
    _, gradient, metrics = loss_of("gspo", tokens(ratio=[1.001, 1.001], advantage=[1.0, 1.0]))
    assert metrics["clip_fraction_high"] == 1
    assert not gradient.any()


def test_one_outlier_moves_gmpo_no_further_than_its_clip() -> None:
    calm = loss_of("gmpo", tokens(ratio=[1.0, 1.0], advantage=[1.0, 1.0]))[0]
    wild = loss_of("gmpo", tokens(ratio=[1.0, 1e6], advantage=[1.0, 1.0]))[0]
    torch.testing.assert_close(wild / calm, torch.tensor(0.2, dtype=torch.float64).exp())


@pytest.mark.parametrize("name", ["gmpo", "sppo"])
def test_a_loss_of_sequences_averages_over_sequences_however_tokens_are_aggregated(name: str) -> None:
    batch = example(seed=5, rows=5, width=6)
    first = loss_of(name, batch, aggregate="token-mean")[0]
    assert first == loss_of(name, batch, aggregate="seq-mean-token-sum")[0]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("distance", [30.0, 1e3, 1e4])
def test_an_extreme_ratio_overflows_no_loss(name: str, distance: float) -> None:
    old = torch.full((4, 2), -1.0)
    away = torch.tensor([[distance, 0.0], [distance, distance], [-distance, 0.0], [-distance, distance]])
    for sign in (1.0, -1.0):
        leaf = (old + away).requires_grad_()
        loss, metrics = losses.compute(
            name, old_log_prob=old, log_prob=leaf, advantages=sign * torch.ones(4, 2), mask=torch.ones(4, 2)
        )
        assert loss.isfinite()
        assert torch.autograd.grad(loss, leaf)[0].isfinite().all()
        assert all(value.isfinite() for value in metrics.values())


def test_cispo_silences_no_token() -> None:
    batch = tokens(ratio=[0.01, 0.5, 1.0, 2.0, 100.0], advantage=[1.0, 1.0, 1.0, -1.0, -1.0])
    _, gradient, metrics = loss_of("cispo", batch, clip_low=1.0, clip_high=4.0)
    assert (gradient != 0).all()
    torch.testing.assert_close(gradient[0, -1], torch.tensor(1.0, dtype=torch.float64))
    assert metrics["clip_fraction"] == 0.2


def test_sapo_fades_instead_of_clipping_and_faster_where_the_advantage_is_negative() -> None:
    batch = tokens(ratio=[1.0, 3.0, 6.0], advantage=[1.0, 1.0, 1.0])
    slope = loss_of("sapo", batch)[1].abs() / batch.log_prob.sub(batch.old_log_prob).exp()
    assert slope[0, 0] > slope[0, 1] > slope[0, 2] > 0
    negative = tokens(ratio=[1.0, 3.0, 6.0], advantage=[-1.0, -1.0, -1.0])
    assert (loss_of("sapo", negative)[1].abs()[0, 1:] < loss_of("sapo", batch)[1].abs()[0, 1:]).all()


def test_the_plain_policy_gradient_needs_no_old_policy() -> None:
    batch = example(seed=1, rows=3, width=3)
    loss, _ = losses.compute("gpg", log_prob=batch.log_prob, advantages=batch.advantages, mask=batch.mask)
    torch.testing.assert_close(loss, loss_of("gpg", batch)[0])
    assert "old_log_prob" not in losses.needs("gpg")
    assert "old_log_prob" in losses.needs("ppo")


def test_sppo_rests_where_the_log_ratio_is_its_target_and_turns_back_beyond() -> None:
    # Two tokens of ratio e^{¼} each: the sequence's log-ratio is ½.
    e = torch.e**0.25
    assert loss_of("sppo", tokens([e, e], [0.5, 0.5]))[1].abs().max() < 1e-12
    assert (loss_of("sppo", tokens([e, e], [1.0, 1.0]))[1] < 0).all()
    assert (loss_of("sppo", tokens([e, e], [0.1, 0.1]))[1] > 0).all()


def chosen(name: str, batch: Example, **params: Any) -> Tensor:
    (tensor,) = losses.prepare(
        name,
        old_log_prob=batch.old_log_prob,
        log_prob=batch.log_prob,
        advantages=batch.advantages,
        mask=batch.mask,
        **params,
    ).values()
    return tensor


def test_kl_cov_holds_the_tokens_of_highest_covariance() -> None:
    batch = example(seed=11, rows=6, width=8)
    held = chosen("kl_cov", batch, kl_cov_ratio=0.25)
    kept = batch.mask.bool()
    assert held.sum() == int(0.25 * kept.sum())
    log_prob, advantage = batch.log_prob - batch.log_prob[kept].mean(), batch.advantages
    covariance = log_prob * (advantage - advantage[kept].mean())
    assert covariance[held].min() >= covariance[kept & ~held].max()
    assert not held[~kept].any()


def test_kl_cov_holds_at_least_one_token_of_a_minibatch() -> None:
    assert chosen("kl_cov", example(seed=11, rows=6, width=8)).sum() == 1


def test_clip_cov_leaves_out_some_of_the_tokens_between_its_bounds() -> None:
    batch = example(seed=12, rows=10, width=8)
    bounds = {"clip_cov_lb": 0.1, "clip_cov_ub": 2.0}
    candidates = chosen("clip_cov", batch, clip_cov_ratio=1.0, **bounds)
    some = chosen("clip_cov", batch, clip_cov_ratio=0.1, **bounds)
    assert some.sum() == int(0.1 * batch.mask.sum())
    assert candidates[some].all()
    _, gradient, metrics = loss_of("clip_cov", batch, clip_cov_ratio=0.1, **bounds)
    assert not gradient[some].any()
    torch.testing.assert_close(metrics["dropped_fraction"], some.sum() / batch.mask.sum())


def test_clip_covs_choice_follows_from_its_seed_alone() -> None:
    batch = example(seed=12, rows=10, width=8)
    params = {"clip_cov_ratio": 0.1, "clip_cov_lb": 0.1, "clip_cov_ub": 2.0}
    first = chosen("clip_cov", batch, seed=1, **params)
    torch.manual_seed(99)
    assert torch.equal(first, chosen("clip_cov", batch, seed=1, **params))
    assert not torch.equal(first, chosen("clip_cov", batch, seed=2, **params))
    wide: dict[str, Any] = {
        k: torch.nn.functional.pad(v, (0, 4)) for k, v in vars(batch).items() if isinstance(v, Tensor)
    }
    padded = chosen("clip_cov", dataclasses.replace(batch, **wide), seed=1, **params)
    assert torch.equal(padded[:, :8], first)


@pytest.mark.parametrize("name", ["kl_cov", "clip_cov"])
def test_a_selective_loss_prepares_itself_where_nothing_was_prepared(name: str) -> None:
    batch = example(seed=12, rows=10, width=8)
    prepared = losses.prepare(
        name,
        old_log_prob=batch.old_log_prob,
        log_prob=batch.log_prob,
        advantages=batch.advantages,
        mask=batch.mask,
    )
    assert losses.prepares(name)
    assert loss_of(name, batch)[0] == loss_of(name, batch, **prepared)[0]


def test_other_losses_have_nothing_to_prepare() -> None:
    batch = example(seed=1, rows=3, width=3)
    assert [name for name in ALL if losses.prepares(name)] == ["clip_cov", "kl_cov"]
    nothing = losses.prepare("gpg", log_prob=batch.log_prob, advantages=batch.advantages, mask=batch.mask)
    assert nothing == {}


def test_a_whole_batch_is_its_own_measure_of_dr_grpos_constant() -> None:
    batch = example(seed=1, rows=4, width=8)
    mode = "seq-mean-token-sum-norm"
    assert loss_of("ppo", batch, aggregate=mode)[0] == loss_of("ppo", batch, aggregate=mode, norm_tokens=8)[0]


def test_an_unknown_loss_or_argument_is_reported() -> None:
    batch = example(seed=1, rows=3, width=3)
    with pytest.raises(UserError, match=r"unknown policy loss 'pop'; known: .*ppo"):
        loss_of("pop", batch)
    with pytest.raises(UserError, match=r"'ppo' takes no 'clip_hi'; did you mean 'clip_high'\?"):
        loss_of("ppo", batch, clip_hi=0.28)
    with pytest.raises(UserError, match=r"unknown aggregation 'token_mean'; did you mean 'token-mean'\?"):
        loss_of("ppo", batch, aggregate="token_mean")


def test_a_missing_input_and_a_wrong_shape_are_named() -> None:
    batch = example(seed=1, rows=3, width=4)
    with pytest.raises(UserError, match="policy loss 'ppo' needs old_log_prob, which was not given"):
        losses.compute("ppo", log_prob=batch.log_prob, advantages=batch.advantages, mask=batch.mask)
    with pytest.raises(UserError, match=r"'gpg': advantages has shape \[3\], expected \[3, 4\]"):
        losses.compute("gpg", log_prob=batch.log_prob, advantages=batch.advantages[:, 0], mask=batch.mask)
    with pytest.raises(UserError, match=r"'ppo': weights has shape \[3\], expected \[3, 4\]"):
        loss_of("ppo", batch, weights=batch.weights[:, 0])


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("-log_prob", "must return the losses, a tensor, and measures, a dict; it returned a Tensor"),
        ("(-log_prob, None)", "a dict; it returned a tuple"),
        ("(-log_prob[:, :1], {})", r"the loss has shape \[3, 1\], expected \[3, 4\]"),
        ("(-log_prob.mean(), {})", r"the loss has shape \[\], expected \[3, 4\]"),
        ("(-log_prob, {'far': log_prob[0]})", r"far has shape \[4\], expected \[3, 4\]"),
    ],
)
def test_what_an_own_loss_returns_is_checked(tmp_path: Path, returned: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def own(*, log_prob, advantages, mask):\n    return {returned}\n")
    batch = example(seed=1, rows=3, width=4)
    with pytest.raises(UserError, match=message):
        losses.compute(f"{file}:own", log_prob=batch.log_prob, advantages=batch.advantages, mask=batch.mask)
