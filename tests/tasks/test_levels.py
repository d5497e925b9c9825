"""Levels: as asked for, divided for good, demonstrated by their solutions."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError
from toolwright.images import data_url, opened
from toolwright.tasks import ENVIRONMENTS, TaskSet, load
from toolwright.tasks.builtin.gridworld import GridWorld
from toolwright.tasks.builtin.shop import Product, Shop, ShoppingGoal
from toolwright.tasks.builtin.sokoban import BOX, FLOOR, SQUARE, TARGET, WALL, YOU, Sokoban
from toolwright.trajectory import Task

NAMES = ["gridworld", "sokoban", "shop"]
TASK = Task("t", [])


def built(name: str, *, seed: int = 0, size: int = 32, held_out: int = 16, **params: Any) -> TaskSet:
    return load(
        schema.TaskConfig(name=name, params=params, train_size=size, held_out_size=held_out), seed=seed
    )


@pytest.mark.parametrize("name", NAMES)
def test_no_level_is_both_trained_on_and_held_out(name: str) -> None:
    tasks = built(name)
    ids = [task.id for task in [*tasks.train, *tasks.held_out]]
    assert len(set(ids)) == 48
    assert built(name, seed=1).train != tasks.train
    assert built(name, size=8).held_out == tasks.held_out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tag", [None, "action"])
def test_a_demonstration_without_noise_is_the_shortest_way(name: str, tag: str | None) -> None:
    tasks = built(name, size=8, action_tag=tag)
    assert tasks.demonstrate is not None
    for task in tasks.train:
        kept = dict(task.extra_info["environment"])
        kept.pop("action_tag", None)
        world: Any = ENVIRONMENTS.get(kept.pop("name")).target(**kept)
        messages = tasks.demonstrate(task, random.Random(0))
        said = [m["content"] for m in messages if m["role"] == "assistant"]
        assert said == [f"<{tag}>{action}</{tag}>" if tag else action for action in world.solution()]
        assert messages[0] == {"role": "user", "content": world.reset(task).text}
        assert ("<action>" in task.prompt[0]["content"]) == (tag is not None)


@pytest.mark.parametrize("name", NAMES)
def test_noise_makes_detours_and_the_seed_decides_them(name: str) -> None:
    calm, noisy = built(name), built(name, noise=0.5)
    assert calm.demonstrate is not None
    assert noisy.demonstrate is not None

    def length(tasks: TaskSet) -> int:
        assert tasks.demonstrate is not None
        return sum(len(tasks.demonstrate(task, random.Random(3))) for task in tasks.train)

    if name == "gridworld":  # elsewhere a mistake may be the end of it
        assert length(noisy) > 1.3 * length(calm)
    assert length(noisy) == length(noisy)


def test_grid_levels_have_the_configured_size_and_length() -> None:
    tasks = built("gridworld", width=7, height=4, doors=2, min_steps=9, max_steps=12)
    for task in tasks.train:
        level = task.extra_info["environment"]["level"]
        rows = level.split("\n")
        assert sorted((len(rows) - 2, len(rows[0]) - 2)) == [4, 7]
        assert all(mark in level for mark in "abAB@*")
        assert 9 <= len(GridWorld(level).solution() or []) <= 12


@pytest.mark.parametrize(
    ("name", "params", "why"),
    [
        ("gridworld", {"width": 3, "doors": 1}, "at least 3 × doors \\+ 1 = 4"),
        ("gridworld", {"width": 2, "height": 2, "doors": 0, "min_steps": 2}, "different levels were found"),
        ("gridworld", {"view": "smell"}, "view='smell'"),
        ("sokoban", {"size": 3, "boxes": 4}, "no room to move"),
        ("shop", {"attributes": 4}, "attributes=4"),
    ],
)
def test_impossible_levels_are_an_error(name: str, params: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        load(schema.TaskConfig(name=name, params=params), seed=0)


@pytest.mark.parametrize("name", [*NAMES, "gymnasium"])
def test_a_preset_leaves_room_for_a_whole_game(name: str) -> None:
    config = resolve(Source(), [f"task={name}"]).config
    assert isinstance(config, schema.Config)
    tasks = load(config.task, seed=0)
    longest = max(len(task.prompt[0]["content"]) for task in tasks.train)
    assert longest < config.task.max_prompt_tokens
    if tasks.demonstrate is None:
        return
    for task in tasks.train[:64]:
        messages = tasks.demonstrate(task, random.Random(0))
        spoken = [m["content"] for m in messages if m["role"] == "assistant"]
        assert max(map(len, spoken)) < config.rollout.max_tokens
        assert len(spoken) <= config.rollout.max_turns
        assert sum(len(m["content"]) + 3 for m in messages) < config.model.context


def test_a_key_opens_its_door_and_only_its_own() -> None:
    world = GridWorld("#######\n#@aBA*#\n#.b...#\n#######", "words")
    world.step("right")
    assert world.anchor == "1,2 a"
    assert "right: door B" in world.step("right").text, "which stays closed"
    assert world.anchor == "1,2 a"
    assert "right: floor" in world.step("down").text
    assert world.anchor == "2,2 ab"
    assert len(world.solution() or []) == 4, "both doors are open now"


def test_a_key_may_earn_its_share_when_it_is_taken() -> None:
    world = GridWorld("######\n#@aA*#\n######", key_reward=0.25)
    assert [world.step(move).reward for move in ("right", "left", "right", "right", "right")] == [
        *(0.25, 0.0, 0.0, 0.0, 0.75)
    ]


def test_a_box_is_pushed_but_not_through_walls_or_boxes() -> None:
    world = Sokoban("#######\n#@$-.-#\n#-$$.-#\n#--.--#\n#######")
    first = world.step("right")
    assert first.text.split("\n")[1] == "#-@$.-#"
    assert world.step("right").reward == pytest.approx(1 / 3)
    assert world.step("right").reward == pytest.approx(-1 / 3)
    blocked = Sokoban("######\n#@$$.#\n#---.#\n######")
    assert blocked.step("right").anchor == blocked.reset(TASK).anchor


WISH = ShoppingGoal(kind="mug", attributes=["light", "soft"], options={"colour": "red"}, most=20)


@pytest.mark.parametrize(
    ("product", "chosen", "worth"),
    [
        (Product("b1", "mug", "dune", ("light", "soft"), {}, 20), {"colour": "red"}, 1.0),
        (Product("b1", "mug", "dune", ("light", "soft"), {}, 21), {"colour": "red"}, 0.75),
        (Product("b1", "mug", "dune", ("light", "warm"), {}, 20), {"colour": "blue"}, 0.5),
        (Product("b1", "lamp", "dune", ("light", "soft"), {}, 20), {"colour": "red"}, 0.5),
        (Product("b1", "hat", "dune", ("light", "soft"), {}, 20), {"colour": "red"}, 0.0),
    ],
)
def test_a_purchase_is_scored_as_in_webshop(product: Product, chosen: dict[str, str], worth: float) -> None:
    assert WISH.worth(product, chosen) == pytest.approx(worth)


def test_a_shop_is_searched_browsed_and_bought_from() -> None:
    task = built("shop", results=3).train[0]
    kept = dict(task.extra_info["environment"])
    kept.pop("name")
    shop = Shop(**kept)
    assert shop.reset(task).text.endswith("[search]")
    first = shop.step("search[shirt]").text
    assert "[next]" in first
    second = shop.step("click[next]").text
    assert "[previous]" in second
    assert not set(first.split("\n")[:3]) & set(second.split("\n")[:3])
    assert shop.step("click[previous]").text == first
    item = shop.step(f"CLICK[{shop.buttons[1]}]")
    assert "[buy now]" in item.text
    assert shop.step("click[back to search]").text == "[search]"


def test_sokoban_is_shown_as_an_image_where_asked() -> None:
    settings = schema.TaskConfig(name="sokoban", params={"images": True}, train_size=1, held_out_size=1)
    task = load(settings, seed=0).train[0]
    world = Sokoban(**{k: v for k, v in task.extra_info["environment"].items() if k != "name"})
    seen = world.reset(task)
    assert "green" in task.prompt[0]["content"]
    assert "@" not in seen.text
    picture = opened(data_url(seen.images[0]))
    assert picture.size == (6 * SQUARE, 6 * SQUARE)
    assert {colour for _, colour in picture.getcolors()} >= {WALL, FLOOR, YOU, BOX, TARGET}
    moved = next(outcome for move in world.actions if (outcome := world.step(move)).images != seen.images)
    assert moved.anchor != seen.anchor


SERVER = {"url": "http://127.0.0.1:9"}


def test_a_task_takes_the_settings_of_its_environment() -> None:
    tasks = built("openenv", action="word", action_tag="action", invalid_penalty=0.5, **SERVER)
    world = dict(tasks.train[0].extra_info["environment"])
    assert isinstance(world.pop("seed"), int)
    own = {"name": "openenv", "action": "word", "action_tag": "action", "invalid_penalty": 0.5}
    assert world == {**own, **SERVER}
    assert tasks.demonstrate is None
    assert built("textworld", level=20, noise=0.5).demonstrate is not None


@pytest.mark.parametrize(
    ("name", "params", "why"),
    [
        ("openenv", {}, "task 'openenv' needs the setting task.params.url"),
        ("openenv", {**SERVER, "success_reward": "much"}, "task.params.success_reward='much' does not work"),
        ("openenv", {**SERVER, "noise": 0.1}, "task 'openenv' has no setting task.params.noise"),
        ("textworld", {"level": 21}, "task.params.level=21 does not work"),
        ("gymnasium", {"action": ["up"]}, "no setting task.params.action; did you mean 'actions'"),
    ],
)
def test_a_setting_that_the_environment_does_not_take_is_reported(
    name: str, params: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        built(name, **params)


@pytest.mark.parametrize("name", ["gymnasium", "openenv", "textworld", "textarena"])
def test_an_environment_without_its_package_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [module for module in sys.modules if module.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    needed = {"openenv": SERVER, "textarena": {"id": "Nim-v0"}}
    with pytest.raises(UserError, match=rf"'{name}' needs .*pip install 'toolwright\[{name}\]'"):
        ENVIRONMENTS.get(name).target(seed=10**6, **needed.get(name, {}))
