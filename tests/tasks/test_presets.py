"""The presets of the group `task`: one for each built-in, stating what the task needs of the rollout."""

from __future__ import annotations

import random
from importlib.resources import files

import pytest
import yaml

from toolwright.config import schema
from toolwright.tasks import TASKS, load

PRESETS = files("toolwright.config") / "presets" / "task"


@pytest.mark.parametrize(
    "name", ["arithmetic", "digits", "reverse", "sort", "countdown", "file", "preferences"]
)
def test_a_preset_names_its_task_and_leaves_room_for_its_answers(name: str) -> None:
    text = (PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")
    preset = yaml.safe_load(text)
    config = schema.TaskConfig(**preset["task"])
    assert config.name == name
    assert name in TASKS.names()
    if name not in ("file", "preferences"):
        tasks = load(config, seed=0)
        answers = [tasks.demonstrate(task, random.Random(0))[0]["content"] for task in tasks.train]
        assert max(map(len, answers)) < preset["rollout"]["max_tokens"]
        assert max(len(task.prompt[0]["content"]) for task in tasks.train) < config.max_prompt_tokens
