"""A user's code on its way to workers: found by what the configuration names, importable where it arrives."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolwright.registry import load_object
from toolwright.runtime import user_code


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    (folder / "parts").mkdir(parents=True)
    (folder / "parts/__init__.py").write_text("ONE = 1\n")
    (folder / "beside.py").write_text("TWO = 2\n")
    (folder / "reward.py").write_text(
        "import beside\nfrom parts import ONE\n\n\ndef score(solution_str):\n    return beside.TWO + ONE\n"
    )
    (folder / "tasks.jsonl").write_text("{}\n")
    return folder


def test_files_modules_and_task_folders_are_found(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(mine)
    monkeypatch.syspath_prepend(str(mine))
    assert user_code.folders({"reward": {"parts": {f"{mine}/reward.py:score": 1.0}}}) == [mine]
    assert user_code.folders({"task": {"train": str(mine / "tasks.jsonl")}}) == [mine]
    assert user_code.folders({"tools": {"x": {"path": "beside:TWO"}}}) == [mine]
    assert (
        user_code.folders({"a": "json:loads", "b": "torch.nn:Linear", "c": "toolwright.rewards:Scorer"}) == []
    )
    assert user_code.absolute({"a": ["reward.py:score"], "b": "x.py:nowhere"}) == {
        "a": [f"{mine}/reward.py:score"],
        "b": "x.py:nowhere",
    }


def test_sent_code_works_without_the_original(mine: Path, tmp_path: Path) -> None:
    moved = user_code.stage([mine], tmp_path / "sent")
    mine.rename(tmp_path / "gone")
    sys.path.insert(0, str(tmp_path / "sent"))
    here = user_code.arrive(moved)
    told = user_code.relocated({"reward": f"{mine}/reward.py:score"}, here)
    assert load_object(told["reward"])("") == 3
    assert str(tmp_path / "sent") in told["reward"]
