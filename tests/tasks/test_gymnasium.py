"""Gymnasium's own environments, with text in and out."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.images import data_url, opened
from toolwright.tasks import ENVIRONMENTS, InvalidAction, load
from toolwright.trajectory import Task

pytest.importorskip("gymnasium")
TASK = Task("t", [])
TOY = ["FrozenLake-v1", "Taxi", "CliffWalking"]  # the latest of each
MOVES = ["left", "down", "right", "up"]


def made(**settings: Any) -> Any:
    return ENVIRONMENTS.get("gymnasium").target(**settings)


def test_frozen_lake_is_drawn_and_walked_by_name() -> None:
    lake = made(id="FrozenLake-v1", kwargs={"is_slippery": False}, actions=MOVES, render=True)
    assert lake.reset(TASK).text == "[S]FFF\nFHFH\nFFFH\nHFFG"
    outcome = lake.step("Down")
    assert "[F]HFH" in outcome.text
    assert (outcome.reward, outcome.done, outcome.anchor) == (0, False, "4")
    for action in ("down", "2", "down", "right", "right"):
        outcome = lake.step(action)
    assert (outcome.reward, outcome.done, outcome.info["success"]) == (1, True, True)
    lake.close()


def test_a_hole_is_an_end_but_no_success() -> None:
    lake = made(id="FrozenLake-v1", kwargs={"is_slippery": False}, actions=MOVES)
    lake.reset(TASK)
    lake.step("right")
    outcome = lake.step("down")
    assert (outcome.reward, outcome.done, outcome.info["success"]) == (0, True, False)


@pytest.mark.parametrize("id", TOY)
@pytest.mark.parametrize("render", [False, True])
def test_random_play_is_the_same_for_the_same_seed(id: str, render: bool) -> None:
    def play(seed: int) -> list[Any]:
        world, rng = made(id=id, render=render, seed=seed), random.Random(7)
        seen: list[Any] = [world.reset(TASK)]
        for _ in range(40):
            seen.append(world.step(str(rng.randrange(4))))
            assert isinstance(seen[-1].text, str)
            assert seen[-1].text
            if seen[-1].done:
                break
        world.close()
        return seen

    assert play(3) == play(3)
    assert "\x1b" not in play(3)[-1].text


@pytest.mark.parametrize(
    "text", ["", "north", "4", "-1", "1.5", "true", "[1]", "{}", "null", "[" * 5000, "9" * 400]
)
def test_an_invalid_action_is_reported(text: str) -> None:
    lake = made(id="FrozenLake-v1", actions=MOVES)
    lake.reset(TASK)
    with pytest.raises(InvalidAction, match="is not an action here: say left, down, right, up"):
        lake.step(text)


def test_numbers_are_read_where_a_space_is_continuous() -> None:
    car = made(id="MountainCarContinuous-v0", template="position and speed: {observation}")
    assert car.reset(TASK).text.startswith("position and speed: [-0.")
    assert car.step("[0.5]").reward < 0
    for text in ("[7]", "fast", "[]", '["a"]'):
        with pytest.raises(InvalidAction):
            car.step(text)


def test_a_wrong_number_of_action_names_is_an_error() -> None:
    with pytest.raises(UserError, match="2 names for 4 numbered actions"):
        made(id="FrozenLake-v1", actions=["a", "b"])


def test_tasks_are_seeds_and_never_the_same() -> None:
    tasks = load(schema.TaskConfig(name="gymnasium", train_size=16, held_out_size=16), seed=0)
    seeds = [task.extra_info["environment"]["seed"] for task in [*tasks.train, *tasks.held_out]]
    assert len(set(seeds)) == 32
    assert tasks.demonstrate is None


def test_an_image_is_shown_and_a_package_is_imported_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "picture_games.py").write_text(PICTURE_GAME)
    monkeypatch.syspath_prepend(tmp_path)
    game = made(id="picture_games:Brighter-v0", actions=["-", "+"], template="{observation}Which way?")
    seen = game.reset(TASK)
    assert seen.text == "Which way?"
    assert opened(data_url(seen.images[0])).size == (6, 4)
    outcome = game.step("+")
    assert outcome.images != seen.images
    assert (outcome.done, outcome.info["success"], outcome.anchor) == (True, True, None)


PICTURE_GAME = """
import gymnasium
import numpy as np


class Brighter(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Box(0, 255, (4, 6, 3), np.uint8)

    def reset(self, *, seed=None, options=None):
        return np.zeros((4, 6, 3), np.uint8), {"won": False}

    def step(self, action):
        return np.full((4, 6, 3), 99 * action, np.uint8), 0.0, True, False, {"won": bool(action)}


gymnasium.register("Brighter-v0", entry_point=Brighter)
"""
