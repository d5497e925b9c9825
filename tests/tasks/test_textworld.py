"""TextWorld's treasure hunts as an environment."""

from __future__ import annotations

import random

import pytest

from toolwright.config import schema
from toolwright.tasks import load
from toolwright.tasks.environment import InvalidAction
from toolwright.trajectory import Task

pytest.importorskip("textworld")

from toolwright.tasks.builtin.textworld import TreasureHunt

TASK = Task("t", [])


def test_the_shortest_way_wins_and_equal_states_have_equal_anchors() -> None:
    first, second = TreasureHunt(5, 1), TreasureHunt(5, 1)
    seen, again = first.reset(TASK), second.reset(TASK)
    assert seen == again
    assert seen.text.startswith("You win as soon as you take ")
    way = first.solution()
    for action in way[:-1]:
        outcome = first.step(action.upper())
        assert (outcome.reward, outcome.done) == (0.0, False)
        assert outcome == second.step(action)
    assert outcome.anchor != seen.anchor
    assert f"Possible: {', '.join(first.actions)}." in outcome.text
    last = first.step(way[-1])
    assert (last.reward, last.done, last.info) == (1.0, True, {"success": True})


def test_what_cannot_be_done_changes_nothing() -> None:
    world = TreasureHunt(5, 1)
    seen = world.reset(TASK)
    with pytest.raises(InvalidAction, match="You cannot 'fly \\\\x1b"):
        world.step("fly \x1b[31m away")
    assert world.anchor == seen.anchor


def test_attempts_at_one_game_do_not_touch_each_other() -> None:
    one = TreasureHunt(5, 1)
    start = one.reset(TASK)
    one.step(one.actions[0])
    other = TreasureHunt(5, 1)
    assert other.reset(TASK) == start


def test_tasks_are_games_of_their_own_and_can_be_demonstrated() -> None:
    tasks = load(schema.TaskConfig(name="textworld", train_size=4, held_out_size=2), seed=0)
    assert len({task.id for task in (*tasks.train, *tasks.held_out)}) == 6
    assert tasks.scorer == "environment"
    assert tasks.demonstrate is not None
    task = Task("t", [], extra_info={"environment": {"name": "textworld", "level": 5, "seed": 1}})
    said = tasks.demonstrate(task, random.Random(0))
    assert said[-1]["content"].startswith("take ")
