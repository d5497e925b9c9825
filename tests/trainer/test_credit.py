"""From scores to advantages: the reference, the critic, corrections and steps, where they are asked for."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.algorithms import advantages, kl
from toolwright.algorithms.needs import rewards_to_go, step_rewards
from toolwright.batch import Batch
from toolwright.failures import UserError
from toolwright.trainer.loop import TrainingLoop
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Segment, Task, Trajectory

from .conftest import Build
from .runs import HERE

DOCS = HERE.parents[1] / "docs" / "algorithms.md"
STEP_REWARDS = DOCS.read_text().partition("## Rewards of steps")[2].partition("\n## ")[0]
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


def walk(reward: float, *steps: float | None, tokens: int = 1) -> Trajectory:
    attempt = Trajectory(Task("t", []), "g", reward=reward)
    for earned in steps:
        attempt.append(Segment("environment", [0]))
        attempt.append(Segment("policy", [1] * tokens, [0.0] * tokens, reward=earned))
    return attempt


def test_a_reward_lies_on_the_step_that_earned_it_and_the_rest_on_the_last() -> None:
    assert step_rewards(walk(0.75, 0.5, None, 0.0)) == [0.5, 0.0, 0.25]
    assert step_rewards(walk(0.75, None, None, None)) == [0.0, 0.0, 0.75]
    assert step_rewards(walk(0.75, 0.5, None, 0.0), all_at_end=True) == [0.0, 0.0, 0.75]
    assert step_rewards(walk(0.5, 0.75, 0.25)) == [0.75, -0.25], "a penalty is nobody's but the end's"


def test_step_rewards_of_a_scorer_override_those_of_the_agent() -> None:
    attempt = walk(0.75, 0.5, None, 0.0)
    attempt.step_rewards = [0.0, 0.75, 0.0]
    assert step_rewards(attempt) == [0.0, 0.75, 0.0]


def test_a_greedy_attempt_is_a_baseline_turn_by_turn(build: Build) -> None:
    """An attempt that does as the greedy one does has no advantage anywhere, nor after the other's end."""
    assert rewards_to_go(walk(1.0, 0.5, 0.25)) == [1.0, 0.5, 0.25]
    assert rewards_to_go(walk(1.0, 0.5, 0.25), all_at_end=True) == [1.0]
    trainer = build("algorithm=remax", "algorithm.kl.where=none")
    attempts = [walk(0.75, 0.5, 0.25, tokens=2), walk(0.75, 0.5, 0.0, 0.25)]
    baselines = {"g": rewards_to_go(walk(0.75, 0.5, 0.25))}
    batch, _ = trainer.learner.credit.assign(attempts, exact=True, baselines=baselines, kl_coef=0.0)
    assert batch.padded("advantages").tolist() == [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.25, 0.0]]


def test_a_step_without_a_token_leaves_its_reward_to_the_rest() -> None:
    attempt = walk(1.0, 0.5, 0.25)
    attempt.append(Segment("policy", [], [], reward=0.25))
    assert step_rewards(attempt) == [0.5, 0.5, 0.0]
    attempt.segments.insert(0, Segment("policy", [], [], reward=0.125))
    assert step_rewards(attempt) == [0.0, 0.5, 0.5, 0.0]


@given(
    reward=st.floats(-1e6, 1e6),
    steps=st.lists(st.floats(-1e3, 1e3) | st.none(), min_size=1, max_size=6),
    tokens=st.integers(1, 3),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_without_step_rewards_the_reward_stands_at_the_last_action(
    reward: float, steps: list[float | None], tokens: int
) -> None:
    """Bit for bit, as in attempts of one turn: the sum stands at the last action."""
    several = walk(reward, *steps, tokens=tokens)
    assert sum(step_rewards(several)) == pytest.approx(reward, abs=1e-9)
    for attempt in (walk(reward, *[None] * len(steps), tokens=tokens), walk(reward, steps[0], tokens=tokens)):
        batch = Batch.pack([attempt])
        assert torch.equal(batch.rewards_by_step([step_rewards(attempt)]), batch.rewards([reward]))
    batch = Batch.pack([several])
    at_end = batch.rewards_by_step([step_rewards(several, all_at_end=True)])
    assert torch.equal(at_end, batch.rewards([reward]))


@pytest.mark.parametrize("discount_per", ["token", "turn"])
def test_a_token_is_credited_with_what_comes_after_it_and_not_before(discount_per: str, build: Build) -> None:
    own = ("algorithm=reinforce_plus_plus", "algorithm.gamma=0.5", f"algorithm.discount_per={discount_per}")
    trainer = build(*own, "algorithm.kl.where=none")
    early, late = walk(1.0, 1.0, 0.0, tokens=2), walk(1.0, None, None, tokens=2)
    batch, _ = trainer.learner.credit.assign([early, late], exact=True, baselines={}, kl_coef=0.0)
    by_token = [[0.5, 1.0, 0.0, 0.0], [0.125, 0.25, 0.5, 1.0]]
    by_turn = [[1.0, 1.0, 0.0, 0.0], [0.5, 0.5, 1.0, 1.0]]
    assert batch.padded("returns").tolist() == (by_token if discount_per == "token" else by_turn)
    trainer = build(*own, "algorithm.kl.where=none", "algorithm.step_rewards=false")
    batch, _ = trainer.learner.credit.assign([early, late], exact=True, baselines={}, kl_coef=0.0)
    assert batch.padded("returns")[0].tolist() == batch.padded("returns")[1].tolist()


@pytest.mark.parametrize(
    "estimator", [name for name in advantages.names() if "teacher_log_prob" not in advantages.needs(name)]
)
def test_an_estimator_sees_step_rewards_or_nothing_but_their_sum(estimator: str, build: Build) -> None:
    """As the table in docs/algorithms.md has it."""
    own = (f"algorithm.adv_estimator={estimator}", "algorithm.kl.where=none", "algorithm.gamma=0.5")

    def given(*words: str) -> torch.Tensor:
        trainer = build(*own, *words, "rollout.prompts=8", task="rooms")
        batch = trainer.sample(1)
        return assigned(trainer, batch).columns["advantages"]

    told = re.search(rf"^\| `{estimator}` \| (\w+)", STEP_REWARDS, re.MULTILINE)
    assert told is not None, f"docs/algorithms.md does not say what {estimator} does with step rewards"
    changed = not torch.equal(given(), given("algorithm.step_rewards=false"))
    assert changed is (told[1] != "sum")


def test_an_estimator_that_discounts_tokens_alone_cannot_discount_turns(build: Build, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def mine(*, rewards, mask, gamma=1.0):\n    return rewards, rewards\n")
    with pytest.raises(UserError, match="let it take `turn_end`, which is 1 at the last token of each turn"):
        build(f"algorithm.adv_estimator={tmp_path}/mine.py:mine", "algorithm.discount_per=turn")
    build("algorithm=gigpo", "algorithm.discount_per=turn", task="rooms")  # its steps are turns
    build("algorithm=grpo", "algorithm.discount_per=turn")  # nothing is discounted


def test_the_score_that_attempts_are_compared_by_is_not_rounded_anew(build: Build) -> None:
    """In float32 ten times a tenth is not one; attempts that earned the same must not differ by that."""
    trainer = build("algorithm=grpo", "algorithm.kl.where=none")
    attempts = [walk(1.0, *[0.1] * 10), walk(1.0, 1 / 3, 1 / 3, 1 / 3), walk(1.0, 1.0)]
    batch, _ = trainer.learner.credit.assign(attempts, exact=True, baselines={}, kl_coef=0.0)
    assert not batch.columns["advantages"].any()


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
        ("truncate", "geometric", [1.5, 1.5]),  # √2.5
        ("reject", "token", [0.0, 0.0]),
        ("reject", "geometric", [0.0, 0.0]),
    ],
)
def test_correction_weighs_tokens_by_how_far_off_the_engine_was(
    mode: str, level: str, expected: list[float], build: Build
) -> None:
    own = (f"algorithm.correction.mode={mode}", f"algorithm.correction.level={level}")
    trainer = build(*own, "algorithm.correction.high=1.5", "update.minibatches=2")
    by = torch.tensor([2.0, 1.25]).log().tolist()
    sampled = nudged([t for t in trainer.sample(1).trajectories if t.sampled_tokens == 2], by)
    batch, figures = trainer.learner.credit.assign(sampled, exact=False, baselines={}, kl_coef=0.0)
    weights = torch.tensor([expected] * len(sampled))
    torch.testing.assert_close(batch.padded("weights"), weights, rtol=1e-4, atol=0)
    assert figures["correction/weight_mean"] == pytest.approx(sum(expected) / 2, rel=1e-4)


@pytest.mark.parametrize(("dtype", "corrected"), [("float32", False), ("bfloat16", True)])
def test_a_native_engine_is_corrected_where_it_is_not_exact(
    dtype: str, corrected: bool, build: Build
) -> None:
    trainer = build(f"model.dtype={dtype}")
    figures = trainer.learn(trainer.sample(1), 1)
    assert trainer.engine.exact is not corrected
    assert ("correction/weight_mean" in figures) is corrected
    if corrected:
        assert figures["gap/abs_mean"] > 0
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


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask", "reject"])
def test_an_update_that_corrects_by_its_own_pass_learns_what_one_after_a_pass_learns(
    mode: str, level: str, build: Build
) -> None:
    own = (f"algorithm.correction.mode={mode}", f"algorithm.correction.level={level}")
    figures, norms = [], []
    for beforehand in (False, True):
        trainer = build(*own, "algorithm.correction.low=0.9", "algorithm.correction.high=1.1")
        sampled = trainer.sample(1)
        sampled.groups = [
            replace(g, trajectories=nudged(g.trajectories, [0.3, -0.02, 0.01])) for g in sampled.groups
        ]
        trainer.engine.exact = False
        credit = trainer.learner.credit
        assert not credit.learner_pass(exact=False)
        if beforehand:
            credit.required |= {"sum_pi_squared"}
        figures.append(trainer.learn(sampled, 1))
        norms.append(trainer.learner.policy.decoder.norm.detach().clone())
    for name in ("weight_mean", f"{mode}_fraction", "kl_k3"):
        assert figures[0][f"correction/{name}"] == pytest.approx(figures[1][f"correction/{name}"], rel=1e-4)
    torch.testing.assert_close(norms[0], norms[1])


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
    assert not build().learner.credit.learner_pass(exact=False), "the update itself corrects the gap"
    assert build("update.minibatches=2").learner.credit.learner_pass(exact=False)
    assert not build("update.minibatches=2").learner.credit.learner_pass(exact=True)
    assert build("algorithm=ppo", "update.minibatches=1").learner.credit.learner_pass(exact=False)
    assert build("algorithm.adv_estimator=optimal_token_baseline").learner.credit.learner_pass(exact=True)
