"""Environments with tools of their own: calls in order, a user who answers, a verdict whatever the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.observe.evaluation import EvaluationResult
from toolwright.trajectory import Task, Trajectory

from .functions import Turn, attempted, written

FILE = Path(__file__).with_name("worlds.py")


def task_of(world: str = "Ledger", **settings: Any) -> Task:
    return Task(
        "t", [], data_source="ledger", extra_info={"environment": {"name": f"{FILE}:{world}", **settings}}
    )


def attempt(*turns: Turn, task: Task | None = None, **config: Any) -> Trajectory:
    (trajectory,) = attempted([task or task_of()], lambda _: turns, **config)
    return trajectory


def put(amount: object) -> tuple[str, dict[str, Any]]:
    return "put", {"amount": amount}


def test_calls_change_the_environment_and_a_word_to_the_user_ends_it() -> None:
    trajectory = attempt([put(3)], [put(2)], "Done.")
    assert trajectory.failure is None
    assert (trajectory.reward, trajectory.stop, trajectory.turns) == (1.0, "done", 3)
    opening = trajectory.segments[0].text
    assert "Make it 5." in opening
    assert '"name": "put"' in opening
    assert "balance 5" in trajectory.segments[4].text
    assert trajectory.segments[-1].text == "ended at 5"
    assert [step.reward for step in trajectory.steps] == [0.0, 0.0, 1.0]


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


def test_an_unanswerable_call_and_a_call_of_an_unknown_tool_are_reported() -> None:
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


def test_steps_are_rewarded_and_words_stand_before_calls_and_after_answers() -> None:
    trajectory = attempt("I put. " + written(put(5)), "Done.", task=task_of("Steps"))
    assert trajectory.failure is None
    told = trajectory.segments[2].text
    assert told.index("balance 5") < told.index("You said 'I put.'.")
    assert [step.reward for step in trajectory.steps] == [0.5, 0.0]
    assert (trajectory.reward, trajectory.counts["success"], trajectory.stop) == (0.5, 1, "done")


def test_a_turn_without_a_call_that_can_be_read_costs_the_penalty_and_is_no_step() -> None:
    task = task_of("Steps", invalid_penalty=0.25)
    trajectory = attempt("<tool_call>{</tool_call>", [put(5)], "Done.", task=task)
    assert [step.reward for step in trajectory.steps] == [-0.25, 0.5, 0.0]
    assert trajectory.counts["format_faults"] == 1
    assert trajectory.counts["tool_calls"] == 1


def test_calls_without_their_answers_are_the_environments_mistake() -> None:
    trajectory = attempt([put(5), put(1)], task=task_of("Steps", wishes=2))
    assert trajectory.failure is not None
    assert "was given 2 calls and returned 1 answers" in trajectory.failure.message


def test_calls_beyond_the_most_of_a_turn_are_not_run() -> None:
    trajectory = attempt([put(5), put(1)], "Done.", max_calls=1)
    assert "at most 1 calls are run in one turn" in trajectory.segments[2].text
    assert (trajectory.reward, trajectory.counts["calls_refused"]) == (1.0, 1)
