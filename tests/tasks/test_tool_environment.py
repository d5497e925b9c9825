"""Environments with tools of their own: calls in order, a user who answers, a verdict whatever the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.agents.auto import choice
from toolwright.observe.evaluation import EvaluationResult
from toolwright.trajectory import Task, Trajectory

from .functions import Turn, attempted

FILE = Path(__file__).with_name("worlds.py")


def schema_of(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


TOOLS = [schema_of("put"), schema_of("take")]


def task_of(world: str = "Ledger", tools: Any = TOOLS, **settings: Any) -> Task:
    environment = {"name": f"{FILE}:{world}", **settings}
    return Task("t", [], data_source="ledger", extra_info={"environment": environment, "tools": tools})


def attempt(*turns: Turn, task: Task | None = None, **config: Any) -> Trajectory:
    (trajectory,) = attempted([task or task_of()], lambda _: turns, **config)
    return trajectory


def put(amount: object) -> tuple[str, dict[str, Any]]:
    return "put", {"amount": amount}


def test_a_task_that_describes_tools_and_names_an_environment_chooses_this_agent() -> None:
    assert choice(task_of(), {}) == "tool_environment"
    assert choice(task_of(tools=None), {}) == "environment"


def test_calls_change_the_environment_and_a_word_to_the_user_ends_it() -> None:
    trajectory = attempt([put(3)], [put(2)], "Done.")
    assert trajectory.failure is None
    assert (trajectory.reward, trajectory.stop, trajectory.turns) == (1.0, "done", 3)
    opening = trajectory.segments[0].text
    assert "Make it 5." in opening
    assert '"name": "put"' in opening
    assert "balance 5" in trajectory.segments[4].text
    assert trajectory.segments[-1].text == "ended at 5"
    assert [step.reward for step in trajectory.steps] == [None, None, 1.0]


def test_calls_of_one_turn_are_run_in_their_order() -> None:
    trajectory = attempt([put(9), ("take", {"amount": 4})], "Done.")
    answers = trajectory.segments[2].text
    assert answers.index("balance 9") < answers.index("balance 5")
    assert trajectory.reward == 1.0


def test_the_user_answers_until_there_is_nothing_more_to_say() -> None:
    trajectory = attempt("Which?", [put(5)], "Done.", task=task_of(wishes=2))
    assert trajectory.segments[2].source == "environment"
    assert "Anything else?" in trajectory.segments[2].text
    assert (trajectory.reward, trajectory.stop) == (1.0, "done")


def test_a_call_that_cannot_be_answered_is_told_and_one_of_no_tool_is_heard_of() -> None:
    trajectory = attempt([put("much"), ("steal", {"amount": 1})], [put(5)], "Done.")
    answers = trajectory.segments[2].text
    assert "say an amount" in answers
    assert "there is no tool 'steal'" in answers
    assert [call["trouble"] for call in trajectory.segments[2].calls] == ["raised", "unknown_tool"]
    assert trajectory.counts["tool_errors"] == 2
    assert trajectory.reward_parts["known"] == 2


def test_half_a_character_in_an_argument_breaks_nothing() -> None:
    trajectory = attempt([put("\ud800")], [("\ud800", {"\ud800": 1})], [put(5)], "Done.")
    assert (trajectory.failure, trajectory.reward) == (None, 1.0)


def test_the_verdict_is_asked_for_whatever_ended_the_attempt() -> None:
    limited = attempt([put(5)], [put(1)], task=task_of(turns=1))
    assert (limited.reward, limited.stop, limited.turns) == (1.0, "turns", 1)
    assert limited.segments[-2].calls[0]["name"] == "put", "the last calls are kept for readers"
    cut = attempt([put(5)], "x" * 4000, max_tokens=500)
    assert (cut.reward, cut.stop) == (1.0, "length")
    room = len(limited.segments[0].tokens) + len(limited.steps[0].tokens) + 2  # none for the answer
    full = attempt([put(5)], "Done.", max_total_tokens=room)
    assert (full.reward, full.stop) == (1.0, "tokens")


def test_what_the_environment_says_beside_success_is_a_measure_of_an_evaluation() -> None:
    found = EvaluationResult.of([attempt([put(5)], "Done.")])
    assert found.names == ["accuracy", "known", "reward"]
    assert found.estimate("known").value == 1.0
    assert found.counts["calling"] == 1.0


def test_an_environment_without_calls_and_tools_without_schemas_are_errors_in_words() -> None:
    trajectory = attempt([put(5)], task=task_of("Counter"))
    assert trajectory.failure is not None
    assert "has no method 'call'" in trajectory.failure.message
    trajectory = attempt([put(5)], task=task_of(tools=["put"]))
    assert trajectory.failure is not None
    assert "as schemas in OpenAI's form" in trajectory.failure.message
