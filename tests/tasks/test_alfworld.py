"""ALFWorld's games as an environment: which are chosen, and one played where the package is installed."""

from __future__ import annotations

import importlib.util
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tasks import load
from toolwright.tasks.builtin import alfworld
from toolwright.tasks.builtin.alfworld import Household
from toolwright.tasks.environment import Outcome
from toolwright.trajectory import Task

TASK = Task("t", [])
# A mug on a shelf, which belongs into a closed cabinet. The domain's actions name the last types.
PROBLEM = """
(define (problem mug) (:domain alfred)
  (:objects
    agent1 - agent
    loc_bar_0 loc_bar_1 loc_bar_2 - location
    Shelf_bar_1 Cabinet_bar_1 - receptacle
    Mug_bar_1 - object
    ShelfType CabinetType SinkBasinType MicrowaveType FridgeType - rtype
    MugType KnifeType ButterKnifeType - otype)
  (:init
    (= (total-cost) 0)
    (atLocation agent1 loc_bar_0)
    (receptacleAtLocation Shelf_bar_1 loc_bar_1)
    (receptacleType Shelf_bar_1 ShelfType)
    (canContain ShelfType MugType)
    (receptacleAtLocation Cabinet_bar_1 loc_bar_2)
    (receptacleType Cabinet_bar_1 CabinetType)
    (canContain CabinetType MugType)
    (openable Cabinet_bar_1)
    (objectType Mug_bar_1 MugType)
    (pickupable Mug_bar_1)
    (inReceptacle Mug_bar_1 Shelf_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_1))
  (:goal (exists (?r - receptacle ?o - object)
    (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r CabinetType))))
  (:metric minimize (total-cost)))
"""
TAKE = ("go to shelf 1", "take mug 1 from shelf 1")
WAY = (*TAKE, "go to cabinet 1", "open cabinet 1", "move mug 1 to cabinet 1")


def game(folder: Path, name: str, *, solvable: bool = True) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "game.tw-pddl").write_text(json.dumps({"solvable": solvable}))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choosing games takes no more of the package than that it is here."""
    find = importlib.util.find_spec
    spec = ModuleSpec("alfworld", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec if name == "alfworld" else find(name))


def test_games_are_those_that_can_be_won(tmp_path: Path, installed: None) -> None:
    for split in ("train", "valid_unseen"):
        folder = tmp_path / alfworld.FOLDER / split
        game(folder, "pick_and_place/trial_1")
        game(folder, "pick_and_place/trial_2", solvable=False)
        game(folder, "pick_and_place_with_movable/trial_3")
        game(folder, "pick_two/trial_4")
    params = {"data": str(tmp_path), "rooms": "unseen", "action_tag": "action"}
    tasks = load(schema.TaskConfig(name="alfworld", params=params, held_out_size=1), seed=0)
    names = {"alfworld:train/pick_and_place/trial_1", "alfworld:train/pick_two/trial_4"}
    assert {task.id for task in tasks.train} == names
    assert len(tasks.held_out) == 1
    assert tasks.train[0].extra_info["environment"]["action_tag"] == "action"


def test_missing_games_and_a_missing_package_are_reported(tmp_path: Path, installed: None) -> None:
    with pytest.raises(UserError, match="alfworld-download"):
        load(schema.TaskConfig(name="alfworld", params={"data": str(tmp_path)}), seed=0)


@pytest.mark.skipif(importlib.util.find_spec("alfworld") is not None, reason="the package is here")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match=r"toolwright\[alfworld\]"):
        load(schema.TaskConfig(name="alfworld"), seed=0)


@pytest.fixture
def chore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A game file as `alfworld-generate` joins it, by the rules and words of the package."""
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))  # a folder that the package makes when it is imported
    info = pytest.importorskip("alfworld.info")
    words = Path(info.ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    parts = {
        "pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": words.replace("UNKNOWN GOAL", "put a mug in cabinet"),
        "pddl_problem": PROBLEM,
        "walkthrough": list(WAY),
        "solvable": True,
    }
    file = tmp_path / "game.tw-pddl"
    file.write_text(json.dumps(parts), encoding="utf-8")
    return str(file)


def test_a_chore_is_done_by_its_walkthrough(chore: str) -> None:
    argv = sys.argv
    world = Household(chore)
    seen = world.reset(TASK)
    assert "you see a cabinet 1, and a shelf 1." in seen.text
    assert "Your task is to: put a mug in cabinet." in seen.text
    assert world.actions == ["go to cabinet 1", "go to shelf 1", "inventory", "look"]
    assert seen.text.endswith("Possible: go to cabinet 1, go to shelf 1, inventory, look.")
    for action in WAY[:-1]:
        outcome = world.step(f" {action.upper()}\n")
        assert (outcome.reward, outcome.done, outcome.info) == (0.0, False, {"success": False})
    assert WAY[-1] in world.actions
    last = world.step(WAY[-1])
    assert last.text.startswith("You move the mug 1 to the cabinet 1.")
    assert (last.reward, last.done, last.info) == (1.0, True, {"success": True})
    world.close()
    assert sys.argv is argv


def test_equal_states_have_equal_anchors(chore: str) -> None:
    world = Household(chore)
    start = world.reset(TASK).anchor
    unknown = world.step("fly away")
    assert (unknown.anchor, unknown.reward, unknown.done) == (start, 0.0, False)
    assert unknown.text.startswith("Nothing happens.\nPossible: go to cabinet 1,")
    there, taken = [world.step(action).anchor for action in TAKE]
    assert len({start, there, taken}) == 3
    assert world.step("inventory").anchor == taken
    assert world.step("move mug 1 to shelf 1").anchor == there
    assert world.reset(TASK).anchor == start
    world.close()


def test_attempts_in_threads_do_not_touch_each_other(chore: str) -> None:
    def play(_: int) -> list[Outcome]:
        world = Household(chore)
        world.reset(TASK)
        outcomes = [world.step(action) for action in WAY]
        world.close()
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        first, *others = pool.map(play, range(8))
    assert first[-1].reward == 1.0
    assert others == [first] * 7


def test_a_closed_game_leaves_its_engine_to_the_next(chore: str, tmp_path: Path) -> None:
    world = Household(chore)
    world.reset(TASK)
    world.close()
    parts = json.loads(Path(chore).read_text(encoding="utf-8"))
    parts["pddl_problem"] = PROBLEM.replace("Mug_bar_1", "Cup_bar_1")
    (tmp_path / "other.tw-pddl").write_text(json.dumps(parts), encoding="utf-8")
    other = Household(str(tmp_path / "other.tw-pddl"))
    assert other.engine is world.engine
    other.reset(TASK)
    assert "you see a cup 1." in other.step(WAY[0]).text
    other.close()
