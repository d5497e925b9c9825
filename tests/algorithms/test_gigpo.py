"""GiGPO by hand: episodes against episodes, steps against steps from the same state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import advantages
from toolwright.failures import UserError

# Task `u` was tried twice: `long` took three steps and scored 1, `short` took one and scored 0. Task `v` was
# tried once. Each row is a step and carries its episode's score.
GROUP = ["u", "u", "u", "u", "v"]
TRAJECTORY = ["long", "long", "long", "short", "only"]
ANCHOR = ["door", "hall", "door", "door", "door"]
SCORES = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
STEP_REWARDS = torch.tensor([0.9, 0.5, 0.3, 0.0, 0.7])


def gigpo(**changed: Any) -> Tensor:
    given: dict[str, Any] = {
        "rewards": SCORES[:, None],
        "mask": torch.ones(5, 1),
        "group": GROUP,
        "step_rewards": STEP_REWARDS,
        "trajectory": TRAJECTORY,
        "anchor": ANCHOR,
    }
    return advantages.compute("gigpo", **given | changed)[0][:, 0]


def test_episodes_are_compared_over_step_rows_and_a_lone_one_keeps_its_score() -> None:
    # Three of u's four rows scored 1: their mean is ¾. v has only one row.
    torch.testing.assert_close(gigpo(step_weight=0.0), torch.tensor([0.25, 0.25, 0.25, -0.75, 1.0]))


@pytest.mark.parametrize("mode", ["mean_norm", "mean_std_norm"])
def test_what_every_step_of_a_group_says_is_pushed_neither_way(mode: str) -> None:
    # However long those that fail are: the advantages of a group's rows add up to 0.
    assert gigpo(mode=mode, gamma=0.9)[:4].sum() == pytest.approx(0.0, abs=1e-6)
    by_trajectory = gigpo(mode=mode, gamma=0.9, episode_rows=False)
    assert by_trajectory[:4].sum() > 0.5  # here it is the long one that won


def test_over_trajectories_each_counts_once_however_many_steps_it_took() -> None:
    ours = gigpo(step_weight=0.0, episode_rows=False)
    torch.testing.assert_close(ours, torch.tensor([0.5, 0.5, 0.5, -0.5, 0.0]))


def test_steps_from_one_state_are_compared_and_a_lone_step_gets_nothing() -> None:
    # At u's door 0.9, 0.3 and 0.0 were earned, 0.4 on average; the hall was seen once, v's door once.
    ours = gigpo() - gigpo(step_weight=0.0)
    torch.testing.assert_close(ours, torch.tensor([0.5, 0.0, -0.1, -0.4, 0.0]))


def test_the_step_weight_scales_the_step_part_alone() -> None:
    episode = gigpo(step_weight=0.0)
    torch.testing.assert_close(gigpo(step_weight=0.5), episode + 0.5 * (gigpo() - episode))


def test_mean_std_norm_divides_by_the_deviation_of_episodes_and_of_steps() -> None:
    episode = gigpo(step_weight=0.0, mode="mean_std_norm")
    expected = torch.tensor([0.25, 0.25, 0.25, -0.75]) / torch.tensor([1.0, 1.0, 1.0, 0.0]).std()
    torch.testing.assert_close(episode, torch.tensor([*expected, 1.0]), atol=1e-5, rtol=1e-5)
    step = gigpo(mode="mean_std_norm") - episode
    deviation = torch.tensor([0.9, 0.3, 0.0]).std()
    torch.testing.assert_close(
        step, torch.tensor([0.5, 0.0, -0.1, -0.4, 0.0]) / deviation, atol=1e-5, rtol=1e-5
    )


def test_with_gamma_the_steps_of_a_trajectory_are_discounted_in_order() -> None:
    rewards = torch.tensor([0.0, 0.0, 1.0, 0.0, 0.0])
    returns = torch.tensor([0.25, 0.5, 1.0, 0.0, 0.0])
    torch.testing.assert_close(gigpo(step_rewards=rewards, gamma=0.5), gigpo(step_rewards=returns))


def test_trajectories_of_the_same_name_in_two_groups_are_two() -> None:
    renamed = ["a", "a", "a", "b", "a"]
    torch.testing.assert_close(gigpo(trajectory=renamed, gamma=0.9), gigpo(gamma=0.9))


def test_similar_states_fall_together_when_asked_to() -> None:
    anchors = ["the red door", "the hall", "the red door.", "the red doors", "the red door"]
    apart = gigpo(anchor=anchors) - gigpo(step_weight=0.0)
    assert not apart.any()
    together = gigpo(anchor=anchors, similarity=0.9) - gigpo(step_weight=0.0)
    torch.testing.assert_close(together, torch.tensor([0.5, 0.0, -0.1, -0.4, 0.0]))


def test_similarity_is_for_text() -> None:
    with pytest.raises(UserError, match="similarity compares text; an anchor is int"):
        gigpo(anchor=[1, 2, 3, 4, 5], similarity=0.9)
    with pytest.raises(UserError, match=r"similarity=1\.5 must be above 0 and at most 1"):
        gigpo(similarity=1.5)


def test_an_unknown_mode_is_reported() -> None:
    with pytest.raises(UserError, match="unknown mode 'std'; known: mean_norm, mean_std_norm"):
        gigpo(mode="std")
