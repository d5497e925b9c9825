"""An evaluation from attempts: its measures, its file, and how two of them differ."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.observe.evaluation import (
    FILE,
    EvaluationResult,
    differences,
    last_evaluation,
    read_evaluations,
    sizes,
    source_name,
)
from toolwright.trajectory import Failure, Segment, Task, Trajectory


def attempts(
    id: str, answers: Sequence[str | None], *, source: str = "math", truth: str = "2"
) -> list[Trajectory]:
    """One attempt for each answer; None is one that failed."""
    task = Task(id, [{"role": "user", "content": f"{id}?"}], truth, source)
    found = []
    for index, answer in enumerate(answers):
        own = Trajectory(task, id, index, reward=float(answer == truth))
        if answer is None:
            own.failure = Failure("task", "lost")
        own.append(Segment("policy", [1], [0.0], text=answer or ""))
        found.append(own)
    return found


def test_measures_of_several_attempts_a_task() -> None:
    found = EvaluationResult.of([*attempts("a", ["2", "2", "2", "3"]), *attempts("b", ["5", "5", "5", "2"])])
    assert found.names == ["accuracy", "pass_at_2", "pass_at_4", "maj_at_2", "maj_at_4", "reward"]
    assert found.estimate("accuracy").value == 0.5
    assert found.estimate("pass_at_4").value == 1.0
    assert found.estimate("maj_at_4").value == 0.5
    metrics = found.metrics()
    assert metrics["held_out/accuracy_low"] < 0.5 < metrics["held_out/accuracy_high"]
    assert "held_out/pass_at_2" not in metrics, "a step keeps the last k alone"
    assert metrics["held_out/pass_at_4"] == 1.0
    assert found.metrics(whole=True)["held_out/pass_at_2_high"] <= 1.0


def test_one_attempt_a_task_has_neither_pass_at_k_nor_votes() -> None:
    assert EvaluationResult.of(attempts("a", ["2"])).names == ["accuracy", "reward"]
    assert sizes(1) == []
    assert sizes(6) == [2, 4, 6]
    assert sizes(8) == [2, 4, 8]


def test_failed_attempts_count_nowhere_but_as_failed() -> None:
    found = EvaluationResult.of([*attempts("a", ["2", None]), *attempts("b", ["2", "3"])])
    assert found.counts["failed"] == 1
    assert found.estimate("accuracy").value == 0.75
    assert found.estimate("pass_at_2").tasks == 1
    with pytest.raises(UserError, match="none of the 1 held-out attempts could be scored: lost"):
        EvaluationResult.of(attempts("a", [None]))


def test_of_many_reasons_why_nothing_was_scored_the_first_are_reported() -> None:
    lost = attempts("a", [None] * 9)
    for number, one in enumerate(lost):
        one.failure = Failure("task", f"reason {number // 2}")
    with pytest.raises(UserError, match=r"scored: reason 0; reason 1; reason 2; and 2 other reasons$"):
        EvaluationResult.of(lost)


def test_sources_are_told_apart_where_there_are_several() -> None:
    one = EvaluationResult.of(attempts("a", ["2"]))
    assert one.sources == {}
    both = EvaluationResult.of([*attempts("a", ["2"]), *attempts("b", ["3"], source="open ai/gsm8k")])
    assert {name: own.estimate("accuracy").value for name, own in both.sources.items()} == {
        "math": 1.0,
        "open ai/gsm8k": 0.0,
    }
    assert both.metrics()["held_out/open_ai/gsm8k/accuracy"] == 0.0
    assert source_name("") == "unnamed"


def test_a_run_folder_keeps_evaluations_and_the_last_one_of_a_step_counts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no evaluation"):
        last_evaluation(tmp_path)
    first, second = (EvaluationResult.of(attempts("a", [answer])) for answer in ("3", "2"))
    lines = [first.as_line(0), first.as_line(5), second.as_line(5)]
    (tmp_path / FILE).write_text("\n".join(lines) + "\n")
    assert read_evaluations(tmp_path) == {0: first, 5: second}
    assert last_evaluation(tmp_path) == second
    (tmp_path / FILE).write_text('{"step": 1, "tasks": [{"name": "x"}], "counts": {}}\n')
    with pytest.raises(UserError, match="is not a file of evaluations"):
        read_evaluations(tmp_path)


def test_two_evaluations_are_compared_over_the_tasks_they_share() -> None:
    first = EvaluationResult.of([*attempts("a", ["3"]), *attempts("b", ["3"]), *attempts("only", ["2"])])
    second = EvaluationResult.of([*attempts("a", ["2"]), *attempts("b", ["3"]), *attempts("c", ["2"])])
    found = differences(first, second)
    assert list(found) == [""]
    assert (found[""]["accuracy"].tasks, found[""]["accuracy"].difference) == (2, 0.5)
    other_truth = EvaluationResult.of(attempts("a", ["9"], truth="9"))
    assert differences(first, other_truth) == {}, "the same name, but another task"


def test_differences_are_told_by_source() -> None:
    first = EvaluationResult.of([*attempts("a", ["3"]), *attempts("b", ["2"], source="code")])
    second = EvaluationResult.of([*attempts("a", ["2"]), *attempts("b", ["3"], source="code")])
    found = differences(first, second)
    assert {source: own["accuracy"].difference for source, own in found.items()} == {
        "": 0,
        "code": -1,
        "math": 1,
    }


def test_a_line_is_plain_json_whatever_a_source_is_called() -> None:
    hostile = "\x1b[31m\u2028\ud800</script>"
    line = EvaluationResult.of(attempts("a", ["2"], source=hostile)).as_line(0)
    assert "\n" not in line
    assert line.isascii()
    assert json.loads(line)["tasks"][0]["source"] == hostile
