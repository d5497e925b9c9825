"""ALFWorld's games as an environment: which are chosen, and one played where the package is installed."""

from __future__ import annotations

import importlib.util
import json
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tasks import load
from toolwright.tasks.builtin import alfworld


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


def test_missing_games_and_a_missing_package_are_said(tmp_path: Path, installed: None) -> None:
    with pytest.raises(UserError, match="alfworld-download"):
        load(schema.TaskConfig(name="alfworld", params={"data": str(tmp_path)}), seed=0)


@pytest.mark.skipif(importlib.util.find_spec("alfworld") is not None, reason="the package is here")
def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match=r"toolwright\[alfworld\]"):
        load(schema.TaskConfig(name="alfworld"), seed=0)
