"""From scores to advantages: the reference, the critic, corrections and steps, where they are asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from toolwright.algorithms import kl
from toolwright.algorithms.needs import step_rewards
from toolwright.batch import Batch
from toolwright.failures import UserError
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Segment, Task, Trajectory

from .conftest import Build
from .runs import HERE

# A policy that has left its reference, or there would be nothing to see.
ON = ("rollout.prompts=8", "rollout.samples=4", "update.policy.lr=3e-2")


def assigned(trainer: TrainingLoop, sampled: SampledStep, *, coef: float = 0.0, exact: bool = True) -> Batch:
    batch, _ = trainer.learner.credit.assign(
        sampled.trajectories, exact=exact, baselines=sampled.baselines, kl_coef=coef
    )
    return batch


def after_a_step(trainer: TrainingLoop) -> SampledStep:
    trainer.learn(trainer.sample(1), 1)
    return trainer.sample(2)


def test_a_reference_is_kept_only_where_something_asks_it(build: Build) -> None:
    assert build("algorithm=dapo").learner.reference is None
    for preset in ("grpo", "ppo", "rloo"):
        trainer = build(f"algorithm={preset}")
        assert trainer.learner.reference is not None
        mine = {p.data_ptr() for p in trainer.learner.policy.decoder.parameters()}
        assert mine.isdisjoint(p.data_ptr() for p in trainer.learner.reference.decoder.parameters())


def test_a_critic_is_kept_only_where_values_are_needed(build: Build) -> None:
    assert build("algorithm=grpo").learner.critic is None
    assert build("algorithm=ppo").learner.critic is not None


def test_the_reference_in_the_reward_costs_each_token_its_divergence(build: Build) -> None:
    trainer = build("algorithm=reinforce_plus_plus", *ON)
    sampled = after_a_step(trainer)
    batch = assigned(trainer, sampled, coef=0.5)
    away = batch.columns["old_log_prob"] - batch.columns["ref_log_prob"]  # k1
    assert away.abs().max() > 0.01
    rewards = batch.rewards([t.reward or 0.0 for t in sampled.trajectories]) - 0.5 * batch.padded(away)
    to_go = rewards.flip(-1).cumsum(-1).flip(-1) * batch.mask
    torch.testing.assert_close(batch.padded("returns"), to_go)


def test_the_reference_in_the_loss_adds_its_divergence_times_the_coefficient(build: Build) -> None:
    """The divergence and its gradient are 0 at the first step, so both runs take the same first step."""

    def second_step(coef: float) -> dict[str, float]:
        trainer = build("algorithm=grpo", *ON, f"algorithm.kl.coef={coef}")
        return trainer.learn(after_a_step(trainer), 2)

    without, pulled = second_step(0.0), second_step(0.3)
    assert pulled["reference/kl"] == without["reference/kl"] > 1e-3
    expected = without["policy/loss"] + 0.3 * pulled["reference/kl"]
    assert pulled["policy/loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("preset", ["grpo", "ppo"])  # in the loss, in the reward
def test_an_adaptive_coefficient_follows_the_divergence(preset: str, build: Build) -> None:
    own = ("algorithm.kl.target=0.05", "algorithm.kl.horizon=1000", "algorithm.kl.estimator=k3")
    trainer = build(f"algorithm={preset}", *ON, *own)
    coef = trainer.learner.objective.kl_coef
    for step in (1, 2, 3):
        figures = trainer.learn(trainer.sample(step), step)
        assert figures["reference/kl_coef"] == coef
        observed = figures["reference/kl"]
        coef = kl.adapt(coef, observed=observed, target=0.05, horizon=1000, trajectories=32)
        assert trainer.learner.objective.kl_coef == coef
    assert coef != trainer.config.algorithm.kl.coef


def test_the_reference_counts_in_the_episodes_of_step_wise_estimators_too(build: Build) -> None:
    own = ("algorithm=gigpo", "algorithm.kl.where=reward", "algorithm.params.gigpo.step_weight=0")
    trainer = build(*own, "update.policy.lr=3e-2", task="rooms")
    sampled = after_a_step(trainer)
    free, pulled = assigned(trainer, sampled), assigned(trainer, sampled, coef=0.5)
    away = kl.compute("k3", free.columns["old_log_prob"], free.columns["ref_log_prob"])
    cost = 0.5 * free.padded(away).sum(-1)
    assert cost.max() > 0.01
    scores = torch.tensor([t.reward or 0.0 for t in sampled.trajectories])
    for batch, worth in ((free, scores), (pulled, scores - cost)):
        by_group = worth.view(4, 4)
        centred = (by_group - by_group.mean(-1, keepdim=True)).flatten()
        torch.testing.assert_close(batch.padded("advantages")[:, 0], centred, atol=1e-5, rtol=0)


def test_a_step_is_credited_against_steps_from_the_same_state(build: Build) -> None:
    """In one and the same attempt, the step that opened a door is worth more than the one that did not."""
    trainer = build("algorithm=gigpo", "rollout.prompts=8", "rollout.samples=8", task="rooms")
    sampled = trainer.sample(1)
    given = assigned(trainer, sampled).padded("advantages")
    compared = 0
    for row, trajectory in enumerate(sampled.trajectories):
        worth: dict[str, dict[bool, float]] = {}
        for place, step in enumerate(trajectory.steps):  # one token each
            worth.setdefault(str(step.anchor), {})[bool(step.reward)] = float(given[row, place])
        for by_outcome in worth.values():
            if len(by_outcome) == 2:
                assert by_outcome[True] > by_outcome[False]
                compared += 1
    assert compared > 5


def test_step_wise_credit_needs_states_that_have_names(build: Build) -> None:
    trainer = build("algorithm=gigpo", f"rollout.agent={HERE}/fragile.py:Nameless")
    with pytest.raises(UserError, match="takes steps without an anchor that names the state"):
        trainer.learn(trainer.sample(1), 1)


def test_an_environment_that_gives_nothing_on_the_way_pays_the_last_step() -> None:
    attempt = Trajectory(Task("t", []), "g", reward=0.75)
    for reward in (0.5, None, 0.0):
        attempt.append(Segment("policy", [1], [0.0], reward=reward))
    assert step_rewards(attempt) == [0.5, 0.0, 0.0]
    for step in attempt.steps:
        step.reward = None
    assert step_rewards(attempt) == [0.0, 0.0, 0.75]


def nudged(trajectories: list[Trajectory], by: list[float]) -> list[Trajectory]:
    """As an engine would have sampled them whose log-probabilities are off."""
    return [
        replace(
            t,
            segments=[
                replace(s, log_probs=[p - by[i % len(by)] for i, p in enumerate(s.log_probs)])
                for s in t.segments
            ],
        )
        for t in trajectories
    ]


@pytest.mark.parametrize(
    ("mode", "level", "expected"),
    [
        ("truncate", "token", [1.5, 1.25]),  # ratios 2 and 1.25
        ("mask", "token", [0.0, 1.25]),
        ("truncate", "sequence", [1.5, 1.5]),  # their product, 2.5
        ("mask", "sequence", [0.0, 0.0]),
    ],
)
def test_correction_weighs_tokens_by_how_far_off_the_engine_was(
    mode: str, level: str, expected: list[float], build: Build
) -> None:
    own = (f"algorithm.correction.mode={mode}", f"algorithm.correction.level={level}")
    trainer = build(*own, "algorithm.correction.high=1.5")
    by = torch.tensor([2.0, 1.25]).log().tolist()
    sampled = nudged([t for t in trainer.sample(1).trajectories if t.sampled_tokens == 2], by)
    batch, figures = trainer.learner.credit.assign(sampled, exact=False, baselines={}, kl_coef=0.0)
    weights = torch.tensor([expected] * len(sampled))
    torch.testing.assert_close(batch.padded("weights"), weights, rtol=1e-4, atol=0)
    assert figures["correction/gap_max_abs"] == pytest.approx(by[0], abs=1e-4)


@pytest.mark.parametrize(("dtype", "corrected"), [("float32", False), ("bfloat16", True)])
def test_a_native_engine_is_corrected_where_it_is_not_exact(
    dtype: str, corrected: bool, build: Build
) -> None:
    trainer = build(f"model.dtype={dtype}")
    figures = trainer.learn(trainer.sample(1), 1)
    assert trainer.engine.exact is not corrected
    assert ("correction/weight_mean" in figures) is corrected
    if corrected:
        assert figures["correction/gap_mean_abs"] > 0
    off = build(f"model.dtype={dtype}", "algorithm.correction.mode=none")
    assert "correction/weight_mean" not in off.learn(off.sample(1), 1)


def test_an_inexact_engine_gives_a_loss_that_looks_ahead_what_it_needs(build: Build) -> None:
    own = ("model.dtype=bfloat16", "algorithm.correction.mode=none", "algorithm.loss=clip_cov")
    trainer = build(*own)
    assert "policy/loss" in trainer.learn(trainer.sample(1), 1)


NEW_NEED = """
import torch
from toolwright.algorithms.needs import provides

@provides("prompt_tokens")
def prompt_tokens(step):
    return torch.tensor([len(t.segments[0].tokens) for t in step.trajectories])

def by_length(*, rewards, mask, prompt_tokens):
    given = (rewards.sum(-1) - prompt_tokens)[:, None] * mask
    return given, given
by_length.needs = {"prompt_tokens"}

def unmet(*, rewards, mask, tides): ...
unmet.needs = {"tides"}
"""


def test_an_estimator_with_a_new_need_brings_one_provider(build: Build, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NEW_NEED)
    trainer = build(f"algorithm.adv_estimator={tmp_path}/mine.py:by_length", "algorithm.kl.where=none")
    sampled = trainer.sample(1)
    batch = assigned(trainer, sampled)
    for row, t in enumerate(sampled.trajectories):
        expected = (t.reward or 0.0) - len(t.segments[0].tokens)
        assert batch.padded("advantages")[row, 0] == pytest.approx(expected)


def test_a_need_that_nothing_provides_is_refused_before_the_run(build: Build, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NEW_NEED)
    with pytest.raises(UserError, match="needs 'tides', which nothing provides; known: anchor, "):
        build(f"algorithm.adv_estimator={tmp_path}/mine.py:unmet")


def test_the_gap_is_a_metric_of_every_step_and_tells_a_wrong_engine(build: Build) -> None:
    trainer = build()
    sampled = trainer.sample(1)
    sampled.groups = [replace(g, trajectories=nudged(g.trajectories, [0.25])) for g in sampled.groups]
    trainer.engine.exact = False
    figures = trainer.learn(sampled, 1)
    for name, value in {"gap/abs_mean": 0.25, "gap/abs_max": 0.25, "gap/kl": -0.25}.items():
        assert figures[name] == pytest.approx(value, abs=1e-5)


def test_the_gap_is_known_while_only_the_critic_learns(build: Build) -> None:
    trainer = build("algorithm=ppo", "update.minibatches=2", "update.critic_warmup=1")
    before = trainer.learner.policy.decoder.norm.detach().clone()
    figures = trainer.learn(trainer.sample(1), 1)
    assert figures["gap/abs_max"] <= 1e-5
    assert "policy/loss" not in figures
    assert torch.equal(trainer.learner.policy.decoder.norm, before)
    assert trainer.learn(trainer.sample(2), 2)["policy/loss"] != 0
    assert not torch.equal(trainer.learner.policy.decoder.norm, before)


@pytest.mark.parametrize("task", ["rooms", "riddles"])
def test_engine_and_learner_agree_on_attempts_of_many_segments(task: str, build: Build) -> None:
    trainer = build("update.policy.lr=3e-2", task=task)
    for step in range(1, 6):
        sampled = trainer.sample(step)
        assert max(len(t.segments) for t in sampled.trajectories) > 3
        assert trainer.learn(sampled, step)["gap/abs_max"] <= 1e-5


def test_an_engine_that_is_not_exact_costs_one_pass_of_the_learner(build: Build) -> None:
    """With one update a step its own pass tells the old log-probabilities; several need them beforehand."""
    assert not build().learner.credit.learner_pass(exact=True)
    assert not build("algorithm.correction.mode=none").learner.credit.learner_pass(exact=False)
    assert build().learner.credit.learner_pass(exact=False), "the gap is corrected"
    assert build("update.minibatches=2").learner.credit.learner_pass(exact=False)
    assert not build("update.minibatches=2").learner.credit.learner_pass(exact=True)
    assert build("algorithm.correction.mode=truncate").learner.credit.learner_pass(exact=False)
    assert build("algorithm=ppo", "update.minibatches=1").learner.credit.learner_pass(exact=False)
    assert build("algorithm.adv_estimator=optimal_token_baseline").learner.credit.learner_pass(exact=True)
