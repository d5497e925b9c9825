"""What every advantage estimator promises, and what each of them means."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from toolwright.algorithms import advantages
from toolwright.algorithms.masked import whiten
from toolwright.failures import UserError

from .batches import Example, example, examples, quick

ALL = advantages.names()
COMPARED_IN_GROUPS = [
    "grpo",
    "dr_grpo",
    "rloo",
    "opo",
    "grpo_passk",
    "optimal_token_baseline",
    "gigpo",
    "hgpo",
]


def estimate(name: str, batch: Example, **changed: Any) -> tuple[Tensor, Tensor]:
    """Any estimator with everything it could need."""
    rows = len(batch.rewards)
    needed = {
        "values": batch.values,
        "reward_baseline": batch.values[:, 0],
        "old_log_prob": batch.old_log_prob,
        "teacher_log_prob": batch.log_prob,
        "implicit_reward": batch.log_prob,
        "sum_pi_squared": batch.sum_pi_squared,
        "step_rewards": batch.rewards.sum(-1),
        "trajectory": list(range(rows)),
        "anchor": [row % 2 for row in range(rows)],
        "reward_parts": {"right": batch.rewards.sum(-1), "short": batch.values[:, 0]},
        "part_weights": {"right": 1.0, "short": 0.5},
    }
    given: dict[str, Any] = {"rewards": batch.rewards, "mask": batch.mask, "group": batch.group}
    given |= advantages.registry.get(name).accepted(**needed)
    return advantages.compute(name, **given | changed)


def whole_groups(rows: int) -> list[int]:
    """Groups of two and three, none alone."""
    return [min(row // 2, rows // 2 - 1) for row in range(rows)]


def score_at_end(scores: Tensor, mask: Tensor) -> Tensor:
    last = (mask.shape[1] - 1 - mask.flip(-1).argmax(-1)).long()
    return torch.zeros_like(mask).scatter(1, last[:, None], scores[:, None])


@pytest.mark.parametrize("name", ALL)
@quick
@given(batch=examples())
def test_every_estimator_gives_finite_numbers_of_the_shape_of_the_rewards(name: str, batch: Example) -> None:
    for result in estimate(name, batch):
        assert result.shape == batch.rewards.shape
        assert result.isfinite().all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_float_type_that_goes_in_comes_out(name: str, dtype: torch.dtype) -> None:
    batch = example(seed=3, rows=8, width=5)
    ours, returns = estimate(name, batch, rewards=batch.rewards.to(dtype))
    assert ours.dtype == returns.dtype == dtype
    exact, _ = estimate(name, batch)
    torch.testing.assert_close(ours.double(), exact, atol=0.02, rtol=0.02)


@pytest.mark.parametrize("name", [name for name in ALL if name != "remax"])
@quick
@given(batch=examples())
def test_a_token_the_policy_did_not_sample_has_no_advantage(name: str, batch: Example) -> None:
    ours, _ = estimate(name, batch)
    assert (ours[batch.mask == 0] == 0).all()


PER_TOKEN = ("rewards", "values", "old_log_prob", "sum_pi_squared", "weights")


@pytest.mark.parametrize("name", ALL)
@quick
@given(batch=examples(), hidden=st.sampled_from([math.nan, math.inf, -math.inf, 3e38]))
def test_what_the_mask_hides_changes_nothing(name: str, batch: Example, hidden: float) -> None:
    spoiled = {key: torch.where(batch.mask.bool(), getattr(batch, key), hidden) for key in PER_TOKEN}
    taken = advantages.registry.get(name).accepted
    # What is given once a trajectory has no place that could be hidden.
    scores = batch.rewards.sum(-1)
    parts = {"right": scores, "short": batch.values[:, 0]}
    of_rows = taken(reward_baseline=batch.values[:, 0], step_rewards=scores, reward_parts=parts)
    clean = estimate(name, batch, **of_rows, **taken(weights=batch.weights))
    found = estimate(name, replace(batch, **spoiled), **of_rows, **taken(weights=spoiled["weights"]))
    for result, expected in zip(found, clean, strict=True):
        assert torch.equal(result, expected)


@pytest.mark.parametrize("name", ALL)
@quick
@given(batch=examples(), seed=st.integers(0, 1000))
def test_the_order_of_trajectories_does_not_matter(name: str, batch: Example, seed: int) -> None:
    order = torch.randperm(len(batch.rewards), generator=torch.Generator().manual_seed(seed))
    shuffled: dict[str, Any] = {
        key: value[order] if isinstance(value, Tensor) else [value[row] for row in order]
        for key, value in vars(batch).items()
    }
    trajectory = order.tolist()
    extra = (
        {"trajectory": trajectory, "anchor": [row % 2 for row in trajectory]}
        if name in ("gigpo", "hgpo")
        else {}
    )
    torch.testing.assert_close(
        estimate(name, Example(**shuffled), **extra)[0], estimate(name, batch)[0][order]
    )


@pytest.mark.parametrize("name", COMPARED_IN_GROUPS)
@quick
@given(batch=examples(min_rows=4))
def test_other_groups_do_not_matter(name: str, batch: Example) -> None:
    alone = [row for row, group in enumerate(batch.group) if group == batch.group[0]]
    part: dict[str, Any] = {
        key: value[alone] if isinstance(value, Tensor) else [value[row] for row in alone]
        for key, value in vars(batch).items()
    }
    extra = {"trajectory": alone, "anchor": [row % 2 for row in alone]} if name in ("gigpo", "hgpo") else {}
    torch.testing.assert_close(estimate(name, Example(**part), **extra)[0], estimate(name, batch)[0][alone])


SHIFTABLE = ["grpo", "dr_grpo", "rloo", "opo", "grpo_passk", "reinforce_plus_plus_baseline", "gigpo"]


@pytest.mark.parametrize("name", [*SHIFTABLE, "reinforce_plus_plus"])
@quick
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 10), shift=st.floats(-5, 5))
def test_adding_a_constant_to_all_rewards_changes_nothing(
    name: str, seed: int, rows: int, shift: float
) -> None:
    batch = example(seed, rows, width=5)
    group = whole_groups(rows)
    moved = batch.rewards + score_at_end(torch.full((rows,), shift, dtype=torch.float64), batch.mask)
    before, _ = estimate(name, batch, group=group)
    after, _ = estimate(name, batch, group=group, rewards=moved)
    torch.testing.assert_close(after, before, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@quick
@given(seed=st.integers(0, 2**31), rows=st.integers(2, 10))
def test_the_advantages_of_a_group_sum_to_zero(name: str, seed: int, rows: int) -> None:
    batch = example(seed, rows, width=4, holes=False)
    group = whole_groups(rows)
    first_token = estimate(name, batch, group=group)[0][:, 0]
    for key in set(group):
        members = torch.tensor([g == key for g in group])
        torch.testing.assert_close(first_token[members].sum(), torch.zeros((), dtype=torch.float64))


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "opo", "grpo_passk"])
def test_equal_rewards_teach_nothing_even_where_their_mean_is_rounded(name: str) -> None:
    # In float32 the mean of three times 0.1 is not 0.1, and the deviation is not 0 either.
    rewards = torch.full((3, 1), 0.1)
    ours, _ = advantages.compute(name, rewards=rewards, mask=torch.ones(3, 1), group=["a"] * 3)
    assert ours.abs().max() < 1e-7
    # The same rewards in another order: in float32 their sums differ in the last place.
    rewards = torch.tensor([[1.1, 0.3, 0.7], [1.1, 0.7, 0.3], [0.3, 1.1, 0.7]])
    ours, _ = advantages.compute(name, rewards=rewards, mask=torch.ones(3, 3), group=["a"] * 3)
    assert ours.abs().max() < 1e-7


@pytest.mark.parametrize("name", ["rloo", "grpo_passk"])
def test_a_lone_member_of_a_group_gets_no_advantage(name: str) -> None:
    rewards, mask = torch.tensor([[1.0], [0.0], [1.0]]), torch.ones(3, 1)
    ours, _ = advantages.compute(name, rewards=rewards, mask=mask, group=["a", "a", "alone"])
    assert ours[2] == 0
    assert ours[0] != 0


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "opo"])
def test_a_lone_member_keeps_its_raw_score_where_verl_does_so(name: str) -> None:
    rewards, mask = torch.tensor([[1.0], [0.0], [0.5]]), torch.ones(3, 1)
    ours, _ = advantages.compute(name, rewards=rewards, mask=mask, group=["a", "a", "alone"])
    assert ours[2] == 0.5


@quick
@given(batch=examples())
def test_rloo_compares_with_the_mean_of_the_others(batch: Example) -> None:
    ours, _ = estimate("rloo", batch)
    scores = batch.rewards.sum(-1)
    for row, key in enumerate(batch.group):
        others = [i for i, g in enumerate(batch.group) if g == key and i != row]
        expected = scores[row] - scores[others].mean() if others else torch.zeros((), dtype=torch.float64)
        torch.testing.assert_close(ours[row], expected * batch.mask[row])


def test_opo_weighs_the_baseline_by_length() -> None:
    rewards = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    ours, _ = advantages.compute("opo", rewards=rewards, mask=mask, group=["a", "a"])
    torch.testing.assert_close(ours[:, 0], torch.tensor([0.25, -0.75]))


def test_passk_rewards_only_who_is_ahead_and_only_by_how_far() -> None:
    rewards, mask = torch.tensor([[0.2], [1.0], [0.6]]), torch.ones(3, 1)
    ours, _ = advantages.compute(
        "grpo_passk", rewards=rewards, mask=mask, group=[0, 0, 0], normalize_by_std=False
    )
    torch.testing.assert_close(ours.flatten(), torch.tensor([0.0, 0.4, 0.0]))


def test_remax_compares_with_the_greedy_attempt() -> None:
    rewards, mask = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2)
    ours, returns = advantages.compute(
        "remax", rewards=rewards, mask=mask, reward_baseline=torch.tensor([0.5, 0.5])
    )
    torch.testing.assert_close(ours, torch.tensor([[0.5, 0.5], [-0.5, -0.5]]))
    torch.testing.assert_close(returns, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_remax_takes_of_the_greedy_attempt_what_it_had_still_to_earn() -> None:
    rewards, mask = torch.tensor([[0.5, 0.0, 0.5]]), torch.ones(1, 3)
    ours, _ = advantages.compute(
        "remax",
        rewards=rewards,
        mask=mask,
        reward_baseline=torch.tensor([1.0]),
        baseline_to_go=torch.tensor([[1.0, 0.5, 0.5]]),
    )
    torch.testing.assert_close(ours, torch.zeros(1, 3))


def test_gae_with_lambda_one_returns_the_discounted_rewards() -> None:
    batch = example(seed=5, rows=6, width=6, holes=False)
    _, returns = estimate("gae", batch, gamma=0.9, lam=1.0)
    powers = 0.9 ** torch.arange(6, dtype=torch.float64)
    for row in range(6):
        length = int(batch.mask[row].sum())
        for t in range(length):
            expected = (batch.rewards[row, t:length] * powers[: length - t]).sum()
            torch.testing.assert_close(returns[row, t], expected)


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_decoupled_gae_with_one_lambda_is_gae(lam: float) -> None:
    batch = example(seed=5, rows=6, width=6)
    ours = estimate("decoupled_gae", batch, gamma=0.9, lam=lam, critic_lam=lam, alpha=None)
    for found, expected in zip(ours, estimate("gae", batch, gamma=0.9, lam=lam), strict=True):
        torch.testing.assert_close(found, expected)


def test_decoupled_gae_teaches_the_critic_whole_returns_whatever_the_policy_is_given() -> None:
    batch = example(seed=5, rows=6, width=6)
    _, whole = estimate("gae", batch, gamma=0.9, lam=1.0)
    ours, returns = estimate("decoupled_gae", batch, gamma=0.9, lam=0.3, alpha=None)
    torch.testing.assert_close(returns, whole)
    torch.testing.assert_close(ours, estimate("gae", batch, gamma=0.9, lam=0.3)[0])


def test_the_lambda_of_an_answer_follows_from_its_length() -> None:
    """α = 0.5: of 4 tokens λ = ½; of 2 and fewer it is 0, of as many turns as well."""
    batch = example(seed=6, rows=5, width=4, holes=False)
    for length, lam in ((4, 0.5), (2, 0.0), (1, 0.0)):
        mask = torch.zeros_like(batch.mask)
        mask[:, :length] = 1
        ours, _ = estimate("decoupled_gae", batch, mask=mask, alpha=0.5)
        torch.testing.assert_close(ours, estimate("gae", batch, mask=mask, lam=lam)[0])
    turns = torch.tensor([[0.0, 1.0, 0.0, 1.0]]).expand(5, 4)
    every = torch.ones_like(batch.mask)
    ours, _ = estimate("decoupled_gae", batch, mask=every, alpha=0.625, turn_end=turns)
    torch.testing.assert_close(ours, estimate("gae", batch, mask=every, lam=0.2, turn_end=turns)[0])


def gdpo(parts: dict[str, list[float]], weights: dict[str, float], more: float = 0.0) -> Tensor:
    """`more` is taken from the score of the first attempt."""
    columns = {name: torch.tensor(values, dtype=torch.float64) for name, values in parts.items()}
    scores = sum(weights[name] * column for name, column in columns.items())
    assert isinstance(scores, Tensor)
    scores[0] -= more
    mask = torch.ones(len(scores), 1, dtype=torch.float64)
    ours, _ = advantages.compute(
        "gdpo",
        rewards=scores[:, None],
        mask=mask,
        group=["a"] * len(scores),
        reward_parts=columns,
        part_weights=weights,
    )
    return ours[:, 0]


def test_gdpo_tells_attempts_apart_that_have_the_same_sum() -> None:
    parts = {"right": [1.0, 0.0, 0.0, 0.0], "polite": [0.0, 1.0, 1.0, 0.0]}
    first, second, third, last = gdpo(parts, {"right": 1.0, "polite": 1.0}).tolist()
    assert first > second == third > last, "what few do counts more than what many do"


def test_in_gdpo_the_weight_alone_says_how_much_a_part_counts() -> None:
    right, weights = [1.0, 0.0, 0.0, 1.0], {"right": 1.0, "polite": 0.5}
    small = gdpo({"right": right, "polite": [0.0, 0.01, 0.01, 0.01]}, weights)
    large = gdpo({"right": right, "polite": [0.0, 1.0, 1.0, 1.0]}, weights)
    torch.testing.assert_close(small, large, atol=1e-3, rtol=1e-3)


def test_gdpo_takes_what_is_no_part_as_it_is() -> None:
    parts, weights = {"right": [1.0, 0.0, 0.0, 1.0]}, {"right": 1.0}
    before, after = gdpo(parts, weights), gdpo(parts, weights, more=0.5)
    assert after[0] < before[0], "a penalty for length"
    assert after[3] > before[3]


def test_gdpo_goes_by_the_parts_alone_that_a_scorer_returned_and_weights_name() -> None:
    right, polite = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    common = {"mask": torch.ones(4, 1), "group": ["a"] * 4, "part_weights": {}}
    parts, weights = {"right": right, "polite": polite, "other": right}, {"right": 1.0, "polite": 0.5}
    ours, _ = advantages.compute(
        "gdpo",
        rewards=torch.rand(4, 1, dtype=torch.float64),
        reward_parts=parts,
        scorer_weights=weights,
        **common,
    )
    torch.testing.assert_close(
        ours[:, 0], gdpo({"right": right.tolist(), "polite": polite.tolist()}, weights)
    )
    with pytest.raises(UserError, match="gdpo needs kind, but the scorer returns right"):
        advantages.compute(
            "gdpo", rewards=right[:, None], reward_parts=parts, scorer_weights={"kind": 1.0}, **common
        )


def test_gdpo_without_parts_is_grpo_whitened() -> None:
    batch = example(seed=3, rows=8, width=4)
    ours, _ = estimate("gdpo", batch, group=whole_groups(8), reward_parts={}, part_weights={})
    relative, _ = estimate("grpo", batch, group=whole_groups(8))
    torch.testing.assert_close(ours, whiten(relative, batch.mask))


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_an_observation_between_two_actions_is_stepped_over(name: str) -> None:
    whole = example(seed=7, rows=4, width=4, holes=False)
    ones = torch.ones(4, 1, dtype=torch.float64)

    def with_observation(matrix: Tensor, value: float) -> Tensor:
        return torch.cat([matrix[:, :1], value * ones, matrix[:, 1:]], dim=1)

    torn = {
        "rewards": with_observation(whole.rewards, 0.0),
        "mask": with_observation(whole.mask, 0.0),
        "values": with_observation(whole.values, float("nan")),
    }
    given = advantages.registry.get(name).accepted(**torn)
    ours, _ = advantages.compute(name, **given, group=whole.group, gamma=0.9)
    expected, _ = estimate(name, whole, gamma=0.9)
    torch.testing.assert_close(torch.cat([ours[:, :1], ours[:, 2:]], dim=1), expected)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_whitened_advantages_have_mean_zero_and_deviation_one(name: str) -> None:
    batch = example(seed=9, rows=10, width=6)
    ours, _ = estimate(name, batch)
    kept = ours[batch.mask == 1]
    assert abs(float(kept.mean())) < 1e-9
    assert abs(float(kept.std()) - 1) < 1e-6


def test_a_group_may_be_a_list_an_array_or_a_tensor() -> None:
    batch = example(seed=1, rows=6, width=3)
    expected, _ = estimate("grpo", batch)
    as_tensor, _ = estimate("grpo", batch, group=torch.tensor(batch.group))
    as_array, _ = estimate("grpo", batch, group=torch.tensor(batch.group).numpy())
    as_text, _ = estimate("grpo", batch, group=[str(key) for key in batch.group])
    assert torch.equal(expected, as_tensor)
    assert torch.equal(expected, as_array)
    assert torch.equal(expected, as_text)


@pytest.mark.parametrize("name", ALL)
def test_a_mask_may_be_of_any_type(name: str) -> None:
    batch = example(seed=1, rows=6, width=3)
    for mask_type in (torch.bool, torch.int64):
        assert torch.equal(estimate(name, batch, mask=batch.mask.to(mask_type))[0], estimate(name, batch)[0])


def test_verls_names_for_inputs_are_understood() -> None:
    batch = example(seed=1, rows=4, width=3)
    ours, _ = advantages.compute(
        "remax", rewards=batch.rewards, mask=batch.mask, reward_baselines=batch.values[:, 0]
    )
    assert torch.equal(ours, estimate("remax", batch)[0])


def test_an_unknown_estimator_is_told_with_all_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown advantage estimator 'grop'; known: .*grpo"):
        advantages.compute("grop", rewards=torch.ones(1, 1), mask=torch.ones(1, 1))


def test_an_unknown_argument_is_reported_with_the_nearest_known_one() -> None:
    batch = example(seed=1, rows=4, width=3)
    with pytest.raises(UserError, match=r"'grpo' takes no 'normalise_by_std'; .*'normalize_by_std'"):
        estimate("grpo", batch, normalise_by_std=True)


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("gae", "values"),
        ("remax", "reward_baseline"),
        ("grpo", "group"),
        ("gigpo", "step_rewards, trajectory, anchor"),
        ("optimal_token_baseline", "old_log_prob, sum_pi_squared"),
    ],
)
def test_a_missing_input_is_named(name: str, missing: str) -> None:
    group = None if name == "grpo" else [0, 1]
    with pytest.raises(UserError, match=f"'{name}' needs {missing}, which was not given"):
        advantages.compute(name, rewards=torch.ones(2, 3), mask=torch.ones(2, 3), group=group)


def test_a_wrong_shape_is_named_with_what_was_expected() -> None:
    batch = example(seed=1, rows=4, width=3)
    with pytest.raises(UserError, match=r"'gae': values has shape \[4\], expected \[4, 3\]"):
        estimate("gae", batch, values=batch.values[:, 0])
    with pytest.raises(UserError, match=r"mask has shape \[4, 2\], expected \[4, 3\]"):
        estimate("grpo", batch, mask=batch.mask[:, :2])
    with pytest.raises(UserError, match="group has 3 entries, expected one for each of 4 rows"):
        estimate("grpo", batch, group=batch.group[:3])
    with pytest.raises(UserError, match=r"rewards must be floating point, \[trajectories, tokens\]"):
        advantages.compute("grpo", rewards=torch.ones(3), mask=torch.ones(3), group=[0, 0, 0])


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("gae", {"values"}),
        ("remax", {"reward_baseline", "baseline_to_go"}),
        ("gigpo", {"step_reward", "anchor"}),
        ("gdpo", {"reward_parts", "part_weights"}),
        ("optimal_token_baseline", {"old_log_prob", "sum_pi_squared"}),
        ("distill", {"old_log_prob", "teacher_log_prob"}),
        ("prime", {"implicit_reward"}),
        ("grpo", set()),
    ],
)
def test_an_estimator_says_what_the_trainer_must_provide(name: str, needs: set[str]) -> None:
    assert advantages.needs(name) == needs


def test_an_estimator_of_the_users_own_file_is_found_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def centred(*, rewards, mask, group):\n"
        "    advantages = (rewards - rewards.mean()) * mask\n"
        "    return advantages, advantages\n"
        "centred.needs = {'values'}\n"
    )
    batch = example(seed=1, rows=4, width=3)
    ours, _ = advantages.compute(f"{file}:centred", rewards=batch.rewards, mask=batch.mask, group=batch.group)
    torch.testing.assert_close(ours, (batch.rewards - batch.rewards.mean()) * batch.mask)
    assert advantages.needs(f"{file}:centred") == {"values"}


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("rewards", "must return advantages and returns, two tensors; it returned a Tensor"),
        ("None", "must return advantages and returns, two tensors; it returned a NoneType"),
        ("(rewards, rewards, rewards)", "two tensors; it returned a tuple"),
        ("(rewards.numpy(), rewards)", "two tensors; it returned a tuple"),
        ("(rewards[:1], rewards)", r"advantages has shape \[1, 3\], expected \[4, 3\]"),
        ("(rewards, rewards[0])", r"returns has shape \[3\], expected \[4, 3\]"),
    ],
)
def test_what_an_own_estimator_returns_is_checked(tmp_path: Path, returned: str, message: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"def own(*, rewards):\n    return {returned}\n")
    batch = example(seed=1, rows=4, width=3)
    with pytest.raises(UserError, match=message):
        estimate(f"{file}:own", batch)


def test_advantages_carry_no_gradient() -> None:
    batch = example(seed=1, rows=4, width=3)
    ours, returns = estimate("gae", batch, values=batch.values.clone().requires_grad_())
    assert not ours.requires_grad
    assert not returns.requires_grad


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, toolwright.algorithms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
