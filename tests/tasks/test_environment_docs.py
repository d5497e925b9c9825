"""The environments of docs/environments.md work as they are written there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from toolwright.config import schema
from toolwright.registry import load_object
from toolwright.tasks import Observation, Outcome, load
from toolwright.tasks.environment_host import EnvironmentHost
from toolwright.trajectory import Task

from .functions import attempted

PAGE = Path(__file__).parents[2] / "docs/environments.md"


def code_block(number: int) -> str:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[number]


def test_the_documented_environment_and_its_task_are_one_short_file(tmp_path: Path) -> None:
    code = code_block(0)
    assert len(code.splitlines()) <= 60
    file = tmp_path / "guess.py"
    file.write_text(code, encoding="utf-8")
    tasks = load(schema.TaskConfig(name=f"{file}:guess"), seed=0)
    assert (len(tasks.train), len(tasks.held_out)) == (8, 2)

    async def play() -> tuple[Observation, Outcome]:
        host = EnvironmentHost(tasks.train[3].extra_info["environment"], limit_s=60)
        seen, outcome = await host.reset(tasks.train[3]), await host.step("3")
        await host.close()
        return seen, outcome

    seen, outcome = asyncio.run(play())
    assert seen.anchor == "start"
    assert (outcome.reward, outcome.done, outcome.info) == (1.0, True, {"success": True})


def test_the_documented_loop_asks_the_policy_until_it_is_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "asking.py").write_text(code_block(1), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    task = Task("t", [], extra_info={"environment": {"name": "asking.py:Asking"}})
    (trajectory,) = attempted([task], lambda _: ["4", "5"])
    assert (trajectory.reward, trajectory.turns) == (1.0, 2)


def test_the_documented_game_is_played_by_two(tmp_path: Path) -> None:
    file = tmp_path / "nim.py"
    file.write_text(code_block(2), encoding="utf-8")
    config = schema.TaskConfig(name=f"{file}:nim", params={"most": 9}, train_size=6, held_out_size=2)
    played = attempted(load(config, seed=0).train, lambda _: ["1"])
    assert [one.failure for one in played] == [None] * 6
    assert {one.reward for one in played} <= {1.0, -1.0}


def test_the_documented_environment_with_tools_is_called_and_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "till.py").write_text(code_block(3), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    task = load_object("till.py:task")
    (trajectory,) = attempted([task], lambda _: [[("put", {"amount": 2}), ("put", {"amount": 3})], "Done."])
    assert "The balance is 5." in trajectory.segments[2].text
    assert trajectory.reward == 1.0
