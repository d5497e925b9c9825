"""However a minibatch is split into micro-batches, the update's gradient is the same."""

from __future__ import annotations

from functools import cache

import pytest
import tiny
import torch
from rounding import assert_same_sum
from torch import Tensor, nn

from toolwright.algorithms import aggregate, losses
from toolwright.batch import Batch, partition
from toolwright.config import schema
from toolwright.config.learning import KL
from toolwright.learner.critic import Critic
from toolwright.learner.objective import Objective
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.policy import Policy

LOSSES = sorted({losses.registry.get(name).target: name for name in losses.names()}.values())  # one name each
AGGREGATIONS = aggregate.names()
SPLITS = [2, 3, 7]
# Enough chosen tokens that some parts hold several and others none.
SELECTIVE = {
    "kl_cov": {"kl_cov_ratio": 0.3},
    "clip_cov": {"clip_cov_ratio": 0.3, "clip_cov_lb": 0.05, "clip_cov_ub": 50.0},
}


def policy_of(micro_tokens: int) -> Policy:
    return Policy(
        tiny.decoder(kv_heads=2, qk_norm=True, family="qwen3"),
        schema.OptimizerConfig(),
        total_updates=1,
        temperature=0.8,
        micro_tokens=micro_tokens,
        dtype=torch.float32,
    )


@cache
def minibatch() -> Batch:
    """Fourteen attempts at a policy that has moved since, with a reference that has moved further."""
    made = tiny.batch(14, seed=3, longest=30)
    now = policy_of(10_000).statistics(made)["log_prob"]
    generator = torch.Generator().manual_seed(0)
    for name, distance in {"old_log_prob": 0.3, "sampled_log_prob": 0.31, "ref_log_prob": 0.6}.items():
        made.columns[name] = now + distance * torch.randn(now.shape, generator=generator)
    made.columns["weights"] = torch.rand(now.shape, generator=generator) + 0.5
    return made


@cache
def budget_for(parts: int) -> int:
    lengths = minibatch().lengths
    return next(b for b in range(max(lengths), 10_000) if len(partition(lengths, b)) == parts)


class _Caught(Exception):
    """Raised in place of the optimiser's step."""


@pytest.fixture
def no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: Optimizer) -> dict[str, float]:
        raise _Caught

    monkeypatch.setattr(Optimizer, "step", stop)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def of_policy(algorithm: schema.Algorithm, parts: int) -> dict[str, Tensor]:
    policy = policy_of(budget_for(parts))
    assert len(minibatch().split(policy.budget.tokens)) == parts
    with pytest.raises(_Caught):
        policy.update(minibatch(), Objective(algorithm, norm_tokens=16))
    return gradients(policy.decoder)


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Up to rounding: a gradient is a sum over the minibatch's tokens, taken in parts."""
    assert found.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        assert_same_sum(found[name], gradient, terms=sum(minibatch().lengths), largest=largest, name=name)


@pytest.mark.usefixtures("no_step")
@pytest.mark.parametrize("mode", AGGREGATIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_policys_gradient_is_that_of_the_whole(loss: str, mode: str) -> None:
    algorithm = schema.Algorithm(
        loss=loss,
        aggregate=mode,
        entropy_coef=0.05,
        kl=KL(where="loss", coef=0.1, estimator="k3"),
        params={loss: SELECTIVE.get(loss, {})},
    )
    whole = of_policy(algorithm, 1)
    assert max(float(g.abs().max()) for g in whole.values()) > 1e-3
    for parts in SPLITS:
        assert_equal(of_policy(algorithm, parts), whole)


@pytest.mark.usefixtures("no_step")
@pytest.mark.parametrize("parts", SPLITS)
def test_the_critics_gradient_is_that_of_the_whole(parts: int) -> None:
    def gradient(micro_tokens: int) -> dict[str, Tensor]:
        critic = Critic(
            tiny.decoder(),
            schema.OptimizerConfig(),
            total_updates=1,
            micro_tokens=micro_tokens,
            clip=0.2,
            dtype=torch.float32,
        )
        nn.init.constant_(critic.model.head.weight, 0.1)  # a head of zero hides the body's gradient
        with pytest.raises(_Caught):
            critic.update(minibatch())
        return gradients(critic.model)

    assert_equal(gradient(budget_for(parts)), gradient(10_000))


def test_metrics_do_not_depend_on_micro_batches() -> None:
    algorithm = schema.Algorithm(entropy_coef=0.05, kl=KL(where="loss", coef=0.1))
    whole, split = (
        policy_of(budget_for(parts)).update(minibatch(), Objective(algorithm, norm_tokens=16))
        for parts in (1, 7)
    )
    assert whole.keys() == split.keys()
    assert split == pytest.approx(whole, abs=1e-6, rel=1e-5)


def test_log_probabilities_do_not_change_either() -> None:
    wanted = policy_of(10_000).statistics(minibatch(), squares=True)
    found = policy_of(budget_for(7)).statistics(minibatch(), squares=True)
    assert wanted.keys() == found.keys() == {"log_prob", "entropy", "sum_pi_squared"}
    for name, column in wanted.items():
        torch.testing.assert_close(found[name], column, rtol=0, atol=1e-5)
    frozen = tiny.frozen_copy(policy_of(budget_for(3)))
    torch.testing.assert_close(frozen.statistics(minibatch())["log_prob"], wanted["log_prob"])
