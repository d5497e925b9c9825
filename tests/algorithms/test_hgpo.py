"""HGPO by hand: a step against steps that share its state, and more so the longer the past they share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from toolwright.algorithms import advantages
from toolwright.failures import UserError

# Three attempts at one task. `a` and `b` come to the hall from the door, `c` from the garden.
TRAJECTORY = ["a", "a", "b", "b", "c", "c"]
ANCHOR = ["door", "hall", "door", "hall", "garden", "hall"]
RETURNS = torch.tensor([4.0, 3.0, 2.0, 1.0, 0.0, 5.0])


def hgpo(**changed: Any) -> Tensor:
    given: dict[str, Any] = {
        "rewards": torch.tensor([[1.0], [1.0], [0.0], [0.0], [0.0], [0.0]]),
        "mask": torch.ones(6, 1),
        "group": ["u"] * 6,
        "step_rewards": RETURNS,
        "trajectory": TRAJECTORY,
        "anchor": ANCHOR,
        "mode": "mean_norm",
        "history": 1,
    }
    return advantages.compute("hgpo", **given | changed)[0][:, 0]


def test_without_history_it_is_the_step_part_of_gigpo() -> None:
    # At the door 4 and 2 were earned; in the hall 3, 1 and 5; the garden was seen once.
    torch.testing.assert_close(hgpo(history=0), torch.tensor([1.0, 0.0, -1.0, -2.0, 0.0, 2.0]))


def test_a_longer_shared_past_weighs_more() -> None:
    # In the hall by way of the door: 3 and 1, so ±1 at level 2 with weight 3, beside level 1 with weight 2.
    # `a` has 0 at level 1, which says nothing and is left out; `c` has no one at level 2.
    expected = torch.tensor([1.0, 1.0, -1.0, (2 * -2 + 3 * -1) / 5, 0.0, 2.0])
    torch.testing.assert_close(hgpo(), expected)


def test_alpha_of_zero_weighs_all_levels_the_same() -> None:
    torch.testing.assert_close(hgpo(alpha=0.0)[3], torch.tensor(-1.5))


def test_the_base_group_adds_the_episode_as_level_zero() -> None:
    # Rows scored 1, 1, 0, 0, 0, 0: a third on average. `c` in the garden has nothing but its episode.
    ours = hgpo(base_group=True)
    third = 1 / 3
    expected = [(1 - third + 2 * 1) / 3, (1 - third + 3 * 1) / 4, (-third - 2) / 3]
    torch.testing.assert_close(ours[:3], torch.tensor(expected))
    torch.testing.assert_close(ours[4], torch.tensor(-third))


def test_returns_are_divided_by_their_deviation_and_discounted() -> None:
    # At the door 4 and 2: deviation √2, so ±1/√2.
    torch.testing.assert_close(
        hgpo(mode="mean_std_norm", history=0)[:1], torch.tensor([2**-0.5]), rtol=1e-5, atol=0
    )
    # Discounted by ½: 4 + 1.5 and 2 + 0.5 at the door.
    torch.testing.assert_close(hgpo(gamma=0.5, history=0)[0], torch.tensor(1.5))


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(UserError, match="mean_std_norm"):
        hgpo(mode="median")
