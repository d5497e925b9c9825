"""What holds of every built-in environment, whatever is done in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.config import schema
from toolwright.tasks import ENVIRONMENTS, InvalidAction, load
from toolwright.trajectory import Task

Build = Callable[[int], Task]

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gridworld": ("gridworld", {}),
    "gridworld, two doors": ("gridworld", {"width": 8, "height": 4, "doors": 2, "walls": 0.15}),
    "gridworld in words": ("gridworld", {"view": "words"}),
    "gridworld in signs": ("gridworld", {"view": "signs"}),
    "gridworld by place": ("gridworld", {"view": "place"}),
    "sokoban": ("sokoban", {}),
    "sokoban, two boxes": ("sokoban", {"size": 5, "boxes": 2}),
    "shop": ("shop", {}),
    "shop, narrow": ("shop", {"products": 200, "results": 2, "attributes": 3}),
}


def one(kind: str, seed: int) -> Task:
    name, params = SETTINGS[kind]
    config = schema.TaskConfig(name=name, params=params, train_size=1, held_out_size=1)
    return load(config, seed=seed).train[0]


def world_of(task: Task) -> Any:
    kept = dict(task.extra_info["environment"])
    return ENVIRONMENTS.get(kept.pop("name")).target(**kept)


def state_of(world: Any) -> Any:
    """All of an environment that ever changes."""
    if hasattr(world, "state"):
        return world.state
    return world.query, world.page, world.item and world.item.id, tuple(sorted(world.options.items()))


def play(world: Any, task: Task, actions: list[str]) -> list[tuple[Any, ...]]:
    """What was seen of it; what is no action changes nothing and is told in words."""
    first = world.reset(task)
    seen: list[tuple[Any, ...]] = [(first.text, first.anchor)]
    for action in actions:
        before = state_of(world)
        try:
            outcome = world.step(action)
        except InvalidAction:
            assert state_of(world) == before
            continue
        seen.append((outcome.text, outcome.anchor, outcome.reward, outcome.done, state_of(world)))
        if outcome.done:
            break
    return seen


def some_actions(world: Any, rng: random.Random, count: int) -> list[str]:
    """Mostly what could be done at the start, some of it nonsense."""
    known = [*world.actions, "up", "down", "left", "right", "search[blue mug]", "click[back to search]"]
    known += ["click[next]", "click[b003]", "click[buy now]", "click[red]"]
    known += ["".join(rng.choices("[]<ux \n9", k=5))]
    return rng.choices(known, k=count)


@pytest.mark.parametrize("kind", SETTINGS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_random_play_never_crashes_and_its_rewards_are_bounded(kind: str, seed: int) -> None:
    task = one(kind, seed)
    seen = play(world_of(task), task, some_actions(world_of(task), random.Random(seed), 60))
    rewards = [step[2] for step in seen[1:]]
    assert all(-1 <= reward <= 1 for reward in rewards)
    assert 0 <= sum(rewards) <= 1 + 1e-9


@pytest.mark.parametrize("kind", SETTINGS)
@given(text=st.text(max_size=60), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_text_is_an_action_or_an_invalid_action(kind: str, text: str, seed: int) -> None:
    task = one(kind, seed % 3)
    play(world_of(task), task, [text, f"search[{text}]", f"click[{text}]", text])


@pytest.mark.parametrize("kind", SETTINGS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_the_same_task_plays_the_same(kind: str, seed: int) -> None:
    task = one(kind, seed)
    actions = some_actions(world_of(task), random.Random(seed), 30)
    assert play(world_of(task), task, actions) == play(world_of(task), task, actions)
    assert one(kind, seed) == task


@pytest.mark.parametrize("kind", SETTINGS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_anchors_are_equal_exactly_where_states_are(kind: str, seed: int) -> None:
    task = one(kind, seed)
    by_anchor: dict[str, Any] = {}
    by_state: dict[Any, str] = {}
    for number in range(4):
        seen = play(world_of(task), task, some_actions(world_of(task), random.Random(seed + number), 40))
        for _, anchor, _, done, state in seen[1:]:
            if not done:
                assert by_anchor.setdefault(anchor, state) == state
                assert by_state.setdefault(state, anchor) == anchor


@pytest.mark.parametrize("kind", SETTINGS)
@given(seed=st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_every_level_is_solved_by_its_own_solution(kind: str, seed: int) -> None:
    """Step by step: each step of a shortest way leaves a way that is one shorter."""
    task = one(kind, seed)
    world = world_of(task)
    world.reset(task)
    way, outcome, earned = world.solution(), None, 0.0
    assert way
    for action in list(way):
        assert world.solution() == way
        outcome = world.step(action)
        earned += outcome.reward
        way = way[1:]
    assert outcome is not None
    assert outcome.done
    assert outcome.info["success"]
    assert earned == pytest.approx(1)


@pytest.mark.parametrize("kind", SETTINGS)
def test_the_alphabet_has_every_character_of_a_game(kind: str) -> None:
    name, params = SETTINGS[kind]
    tasks = load(
        schema.TaskConfig(name=name, params={**params, "noise": 0.5}, train_size=20, held_out_size=2), seed=0
    )
    assert tasks.demonstrate is not None
    for task in tasks.train:
        for message in [*task.prompt, *tasks.demonstrate(task, random.Random(task.id))]:
            assert set(message["content"]) <= set(tasks.alphabet)
