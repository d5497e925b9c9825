"""Workflows as an environment: `task=workflow` is trained on like any other."""

from __future__ import annotations

import asyncio

import pytest

from toolwright.tasks import InvalidAction
from toolwright.trajectory import Task
from toolwright.workflow.environment import FAULT, WorkflowWorld, workflow

TASK = Task("workflow:1", [])


def test_a_gain_is_the_reward_and_the_meaning_is_the_anchor() -> None:
    async def play() -> None:
        world = WorkflowWorld(7, turns=3, tasks=60)
        seen = await world.reset(TASK)
        start = world.score
        outcome = await world.step("replace solve AnswerGenerate")
        assert outcome.reward == pytest.approx(world.score - start)
        assert outcome.anchor != seen.anchor
        assert "AnswerGenerate" in outcome.text
        back = await world.step("replace answer_generate Custom")
        assert back.anchor == seen.anchor
        assert back.reward == pytest.approx(-outcome.reward)
        assert (await world.step("accept")).done

    asyncio.run(play())


def test_what_is_no_edit_costs_and_changes_nothing() -> None:
    async def play() -> None:
        world = WorkflowWorld(7, turns=2, tasks=20)
        seen = await world.reset(TASK)
        with pytest.raises(InvalidAction) as told:
            await world.step("fly to the moon")
        assert told.value.reward == FAULT
        over = await world.step("remove nobody")
        assert over.done
        assert over.anchor == seen.anchor

    asyncio.run(play())


def test_worlds_that_are_trained_on_are_none_of_those_that_are_held_out() -> None:
    tasks = workflow(seed=1, train_size=3, held_out_size=2, depth=0)
    worlds = [[t.extra_info["environment"]["world"] for t in part] for part in (tasks.train, tasks.held_out)]
    assert not set(worlds[0]) & set(worlds[1])
    assert worlds[0] == [20000, 20001, 20002]
