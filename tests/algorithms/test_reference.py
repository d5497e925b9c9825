"""Losses and whole gradients are those of a second implementation, written from the papers in plain loops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import advantages, aggregate, correction, kl, losses

from . import reference

NORM = 7.0
PARAMS: dict[str, dict[str, Any]] = {
    "ppo": {"clip_low": 0.2, "clip_high": 0.28, "clip_c": 3.0},
    "gspo": {"clip_low": 0.1, "clip_high": 0.15},
    "gmpo": {"clip_low": 0.4, "clip_high": 0.4},
    "cispo": {"clip_low": 1.0, "clip_high": 0.28},
    "dppo_tv": {"clip_low": 0.1, "clip_high": 0.15, "clip_c": 3.0},
    "dppo_kl": {"clip_low": 0.02, "clip_high": 0.05, "clip_c": 3.0},
    "sapo": {"tau_pos": 1.0, "tau_neg": 1.05},
    "vespo": {"k_pos": 2.0, "lambda_pos": 3.0, "k_neg": 3.0, "lambda_neg": 2.0},
    "gpg": {},
    "sppo": {"eta": 0.7},
    "kl_cov": {"kl_cov_ratio": 0.2, "ppo_kl_coef": 0.8},
    "clip_cov": {
        "clip_low": 0.3,
        "clip_high": 0.3,
        "clip_cov_ratio": 0.2,
        "clip_cov_lb": 0.05,
        "clip_cov_ub": 50.0,
        "seed": 3,
    },
}
ONLY_OURS = {"kl_cov_ratio", "clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "seed"}  # of the choice
WHOLE_SEQUENCES = {"gmpo", "sppo", "vespo"}  # their papers know one advantage a sequence
CORRECTIONS = [("none", "token"), *itertools.product(("truncate", "mask", "reject"), correction.LEVELS)]
LOW, HIGH = 0.6, 1.6


@dataclass(frozen=True)
class Case:
    log_prob: Tensor
    old_log_prob: Tensor
    sampled_log_prob: Tensor
    advantages: Tensor
    mask: Tensor


def case(kind: str, name: str, seed: int = 0) -> Case:
    """Seven sequences of up to nine tokens, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    rows, width = 7, 9
    lengths = torch.randint(1, width + 1, (rows,), generator=generator)
    mask = (torch.arange(width)[None] < lengths[:, None]).double()
    if kind == "multi-turn":
        # A tool answers for some tokens between turns, in a place of its own in each sequence.
        mask = torch.ones(rows, width, dtype=torch.float64)
        for i in range(rows):
            mask[i, 1 + i % 4 : 3 + i % 5] = 0
        mask[:, -2] = 0
    if kind == "empty answers":
        mask[1], mask[4] = 0, 0
    if kind == "one token each":
        mask[:, 1:] = 0
    old = -normal(rows, width).abs() - 0.05
    change = 0.4 * normal(rows, width)
    if kind == "extreme ratios":
        change[::2, 0], change[1::2, 0] = 30.0, -30.0
        change[0, :3], change[3, :3] = 30.0, -30.0
    a = normal(rows, width)
    if name in WHOLE_SEQUENCES:
        a = a[:, :1].expand(rows, width).clone()
    return Case(old + change, old, old + 0.2 * normal(rows, width), a, mask)


def chosen_by(name: str, given: dict[str, Any]) -> dict[str, Tensor]:
    return losses.prepare(name, **given, **PARAMS[name])


def ours(
    name: str, mode: str, batch: Case, how: tuple[str, str], dtype: torch.dtype
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    given = {
        "old_log_prob": batch.old_log_prob.to(dtype),
        "advantages": batch.advantages.to(dtype),
        "mask": batch.mask.to(dtype),
    }
    weights, _ = correction.compute(
        old_log_prob=given["old_log_prob"],
        sampled_log_prob=batch.sampled_log_prob.to(dtype),
        mask=given["mask"],
        mode=how[0],
        level=how[1],
        low=LOW,
        high=HIGH,
    )
    leaf = batch.log_prob.to(dtype).requires_grad_()
    prepared = chosen_by(name, {"log_prob": leaf.detach(), **given})
    loss, _ = losses.compute(
        name,
        log_prob=leaf,
        aggregate=mode,
        weights=weights,
        norm_tokens=NORM,
        **given,
        **prepared,
        **PARAMS[name],
    )
    return loss.detach(), torch.autograd.grad(loss, leaf)[0], prepared


def theirs(
    name: str, mode: str, batch: Case, how: tuple[str, str], prepared: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    leaf = batch.log_prob.clone().requires_grad_()
    old, sampled = (reference.rows_of(x, batch.mask) for x in (batch.old_log_prob, batch.sampled_log_prob))
    params = {key: value for key, value in PARAMS[name].items() if key not in ONLY_OURS}
    loss, unsigned = reference.objective(
        name,
        log_prob=leaf,
        old_log_prob=batch.old_log_prob,
        advantages=batch.advantages,
        mask=batch.mask,
        by_token=reference.weights(old, sampled, mode=how[0], level=how[1], low=LOW, high=HIGH),
        aggregation=mode,
        norm=NORM,
        chosen=next(iter(prepared.values()), None),
        **params,
    )
    return loss.detach(), torch.autograd.grad(loss, leaf)[0], unsigned


def assert_within_rounding(found: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor, Tensor]) -> None:
    """A sum of n numbers costs n units in the last place of the sum without signs. A ratio costs one more for
    each unit of its exponent, of which there are at most LIMIT. Sequences do not mix in the gradient, so each
    is held to its own largest number. Weights and results in half precision are rounded to it: half a unit
    each."""
    (loss, gradient), (true_loss, true_gradient, unsigned) = found, wanted
    unit = torch.finfo(torch.promote_types(loss.dtype, torch.float32)).eps
    out = torch.finfo(loss.dtype).eps
    n = gradient.numel() + reference.LIMIT
    assert (loss.double() - true_loss).abs() <= (n * unit + out) * unsigned
    n = gradient.shape[1] + reference.LIMIT
    largest = true_gradient.abs().amax(-1, keepdim=True)
    most = n * unit * largest + out * true_gradient.abs()
    apart = (gradient.double() - true_gradient).abs()
    assert (apart <= most).all(), f"{(apart - most).max():.3g} further apart than rounding explains"


def rounded(batch: Case, dtype: torch.dtype) -> Case:
    """What both sides are given: the numbers that `dtype` can hold."""
    return Case(*(value.to(dtype).double() for value in vars(batch).values()))


def test_there_is_a_reference_for_every_loss() -> None:
    targets = {losses.registry.get(name).target: name for name in losses.names()}
    assert {losses.registry.get(name).target for name in reference.LOSSES} == set(targets)
    assert set(PARAMS) == set(reference.LOSSES)


EVERY = list(itertools.product(reference.LOSSES, aggregate.names()))


def assert_agree(name: str, mode: str, batch: Case, how: tuple[str, str], dtype: torch.dtype) -> None:
    loss, gradient, prepared = ours(name, mode, batch, how, dtype)
    assert_within_rounding((loss, gradient), theirs(name, mode, batch, how, prepared))
    assert not gradient[batch.mask == 0].any()


@pytest.mark.parametrize(("name", "mode"), EVERY)
def test_every_loss_aggregation_and_correction(name: str, mode: str) -> None:
    for how in CORRECTIONS:
        assert_agree(name, mode, case("multi-turn", name), how, torch.float64)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("one turn", torch.float64),
        ("multi-turn", torch.float32),
        ("multi-turn", torch.bfloat16),
        ("extreme ratios", torch.float64),
        ("extreme ratios", torch.float32),
        ("empty answers", torch.float64),
        ("one token each", torch.float64),
    ],
    ids=lambda x: str(x).removeprefix("torch."),
)
@pytest.mark.parametrize("name", reference.LOSSES)
def test_every_loss_and_aggregation_on_awkward_numbers(name: str, kind: str, dtype: torch.dtype) -> None:
    """The corrections in turn; with each of them, below."""
    batch, turn = rounded(case(kind, name, seed=1), dtype), itertools.cycle(CORRECTIONS)
    for mode in aggregate.names():
        assert_agree(name, mode, batch, next(turn), dtype)
        assert_agree(name, mode, batch, next(turn), dtype)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["multi-turn", "extreme ratios", "empty answers", "one token each"])
@pytest.mark.parametrize("name", reference.LOSSES)
def test_every_correction_too_on_awkward_numbers(name: str, kind: str, dtype: torch.dtype) -> None:
    batch = rounded(case(kind, name, seed=4), dtype)
    for mode, how in itertools.product(aggregate.names(), CORRECTIONS):
        assert_agree(name, mode, batch, how, dtype)


@pytest.mark.parametrize("kind", ["one turn", "multi-turn", "extreme ratios", "empty answers"])
def test_the_weights_of_every_correction(kind: str) -> None:
    batch = case(kind, "ppo", seed=5)
    rows = [reference.rows_of(x, batch.mask) for x in (batch.log_prob, batch.sampled_log_prob)]
    for mode, level in CORRECTIONS:
        found, _ = correction.compute(
            old_log_prob=batch.log_prob,
            sampled_log_prob=batch.sampled_log_prob,
            mask=batch.mask,
            mode=mode,
            level=level,
            low=LOW,
            high=HIGH,
        )
        wanted = reference.weights(*rows, mode=mode, level=level, low=LOW, high=HIGH)
        flat = torch.tensor([weight for row in wanted for weight in row], dtype=torch.float64)
        most = (found.shape[1] + reference.LIMIT) * torch.finfo(torch.float64).eps * flat
        assert ((found[batch.mask == 1] - flat).abs() <= most).all()
        assert not found[batch.mask == 0].any()


def test_kl_cov_holds_the_tokens_that_the_paper_would_hold() -> None:
    batch = case("multi-turn", "kl_cov", seed=2)
    given = {"log_prob": batch.log_prob, "advantages": batch.advantages, "mask": batch.mask}
    held = chosen_by("kl_cov", {**given, "old_log_prob": batch.old_log_prob})["held"]
    shares = reference.covariances(
        *(reference.rows_of(given[key], batch.mask) for key in ("log_prob", "advantages"))
    )
    flat = [share for row in shares for share in row]
    count = int(len(flat) * 0.2)
    wanted = sorted(range(len(flat)), key=lambda i: -flat[i])[:count]
    assert sorted(held[batch.mask == 1].nonzero().flatten().tolist()) == sorted(wanted)


def test_clip_cov_leaves_out_so_many_of_the_tokens_that_the_paper_allows() -> None:
    batch = case("multi-turn", "clip_cov", seed=2)
    given = {"log_prob": batch.log_prob, "advantages": batch.advantages, "mask": batch.mask}
    out = chosen_by("clip_cov", {**given, "old_log_prob": batch.old_log_prob})["dropped"]
    shares = reference.covariances(
        *(reference.rows_of(given[key], batch.mask) for key in ("log_prob", "advantages"))
    )
    flat = [share for row in shares for share in row]
    chosen = out[batch.mask == 1].nonzero().flatten().tolist()
    r = (batch.log_prob - batch.old_log_prob).exp()
    a = batch.advantages
    silenced = ((r > 1.3) & (a > 0) | (r < 0.7) & (a < 0))[batch.mask == 1]
    candidates = [i for i, share in enumerate(flat) if 0.05 < share < 50 and not silenced[i]]
    assert set(chosen) <= set(candidates)
    assert len(chosen) == min(int(len(flat) * 0.2), len(candidates)) > 0


@pytest.mark.parametrize("name", ["k1", "abs", "k2", "k3", "unbiased", "k1+", "abs+", "k3+"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_pull_of_the_reference(name: str, dtype: torch.dtype) -> None:
    batch = rounded(case("multi-turn", "ppo", seed=6), dtype)
    mask, ref = batch.mask, (batch.sampled_log_prob - 0.3).to(dtype).double()
    for mode in aggregate.names():
        leaf = batch.log_prob.to(dtype).requires_grad_()
        away = kl.compute(name, leaf, ref.to(dtype), mask, old_log_prob=batch.old_log_prob.to(dtype))
        loss = aggregate.compute(mode, away, mask, norm_tokens=NORM)
        (gradient,) = torch.autograd.grad(loss, leaf)
        true_leaf = batch.log_prob.clone().requires_grad_()
        given = zip(*(reference.rows_of(x, mask) for x in (true_leaf, batch.old_log_prob, ref)), strict=True)
        rows = [[reference.divergence(name, *token) for token in zip(*row, strict=True)] for row in given]
        true_loss = reference.aggregate(mode, rows, NORM)
        (true_gradient,) = torch.autograd.grad(true_loss, true_leaf)
        # What cancels in k3 is r (e^{−d} + |d| + 1).
        d, r = batch.log_prob - ref, (batch.log_prob - batch.old_log_prob).exp().clamp(min=1)
        unsigned = reference.aggregate(mode, reference.rows_of(r * ((-d).exp() + d.abs() + 1), mask), NORM)
        assert_within_rounding((loss.detach(), gradient), (true_loss.detach(), true_gradient, unsigned))


def of_grpo(mine: float, scores: list[float]) -> float:
    """2402.03300. A lone member is scored as it is."""
    if len(scores) == 1:
        return mine
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / (len(scores) - 1)
    return (mine - mean) / (variance**0.5 + 1e-6)


def of_dr_grpo(mine: float, scores: list[float]) -> float:
    """2503.20783."""
    return mine if len(scores) == 1 else mine - sum(scores) / len(scores)


def of_rloo(mine: float, scores: list[float]) -> float:
    """2402.14740. A lone member has no others."""
    return 0.0 if len(scores) == 1 else mine - (sum(scores) - mine) / (len(scores) - 1)


@pytest.mark.parametrize(
    ("estimator", "of_one"), [("grpo", of_grpo), ("dr_grpo", of_dr_grpo), ("rloo", of_rloo)]
)
@pytest.mark.parametrize("kind", ["multi-turn", "empty answers"])
@pytest.mark.parametrize("name", ["ppo", "gspo", "gmpo", "gpg"])
def test_from_rewards_to_the_gradient_with_a_lone_member(
    estimator: str, of_one: Callable[[float, list[float]], float], kind: str, name: str
) -> None:
    batch, group = case(kind, name, seed=4), ["a", "b", "b", "lone", "a", "b", "a"]
    scores = [1.0, 0.0, 0.5, 0.75, 0.0, 1.0, 0.25]
    rewards = torch.zeros_like(batch.mask)
    for i, score in enumerate(scores):
        places = batch.mask[i].nonzero().flatten().tolist()
        if places:
            rewards[i, places[-1]] = score
    scores = [float(row.sum()) for row in rewards]  # an empty answer has no token to be rewarded at
    given, _ = advantages.compute(estimator, rewards=rewards, mask=batch.mask, group=group)
    by_hand = torch.tensor(
        [
            of_one(scores[i], [s for s, g in zip(scores, group, strict=True) if g == group[i]])
            for i in range(7)
        ],
        dtype=torch.float64,
    )
    batch = replace(batch, advantages=by_hand[:, None] * batch.mask)
    # Seven numbers are added for a mean, and seven for a deviation.
    most = 14 * torch.finfo(torch.float64).eps * max(1.0, float(by_hand.abs().max()))
    assert (given - batch.advantages).abs().max() <= most
    for mode in aggregate.names():
        loss, gradient, prepared = ours(
            name, mode, replace(batch, advantages=given), ("none", "token"), torch.float64
        )
        assert_within_rounding((loss, gradient), theirs(name, mode, batch, ("none", "token"), prepared))
