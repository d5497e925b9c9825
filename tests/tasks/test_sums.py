"""Sums in words: right calls to demonstrate, wrong ones at chosen rates."""

from __future__ import annotations

import random
from typing import Any

import pytest

from toolwright.config import schema
from toolwright.config.compose import Source, resolve
from toolwright.failures import UserError
from toolwright.tasks import TaskSet, load


def built(**params: Any) -> TaskSet:
    config = schema.TaskConfig(name="sums", params=params, train_size=300, held_out_size=50)
    return load(config, seed=0)


def calls(tasks: TaskSet) -> list[tuple[str, list[dict[str, Any]]]]:
    rng = random.Random(0)
    return [(task.ground_truth, tasks.demonstrate(task, rng)) for task in tasks.train if tasks.demonstrate]


def test_a_demonstration_calls_python_and_repeats_what_it_printed() -> None:
    tasks = built()
    for truth, (call, answer, said) in calls(tasks):
        code = call["tool_calls"][0]["function"]["arguments"]["code"]
        assert str(eval(code.removeprefix("print"))) == truth == answer["content"] == said["content"]
        assert (answer["role"], said["role"]) == ("tool", "assistant")


def test_guesses_and_wrong_operators_come_at_their_rates() -> None:
    found = calls(built(guess_rate=0.5, error_rate=0.4))
    guesses = [messages for _, messages in found if len(messages) == 1]
    wrong = [messages for truth, messages in found if len(messages) == 3 and messages[-1]["content"] != truth]
    assert len(guesses) / len(found) == pytest.approx(0.5, abs=0.08)
    assert len(wrong) / (len(found) - len(guesses)) == pytest.approx(0.4, abs=0.12)


def test_every_form_is_asked_and_none_is_both_trained_on_and_held_out() -> None:
    tasks = built()
    train, held_out = ([task.id for task in part] for part in (tasks.train, tasks.held_out))
    assert {question.split()[0] for question in train} == {
        f"sums:{word}" for word in ("What", "Add", "Take", "Multiply")
    }
    assert not {*train} & {*held_out}


def test_operands_must_leave_a_choice() -> None:
    with pytest.raises(UserError, match="max_operand=10 must be above min_operand=10"):
        built(max_operand=10)


def test_the_preset_brings_the_tool() -> None:
    config = resolve(Source(), ["task=sums"]).config
    assert isinstance(config, schema.Config)
    assert list(config.tools) == ["python"]
    longest = max(len(task.prompt[0]["content"]) for task in load(config.task, seed=0).train)
    assert longest < config.task.max_prompt_tokens
