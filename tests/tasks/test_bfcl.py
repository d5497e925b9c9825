"""The Berkeley Function Calling Leaderboard: its questions as tasks, judged by its own checkers."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tasks import load
from toolwright.tasks.bfcl import questions, schemas
from toolwright.trajectory import Task

from .functions import NOTHING, Call, Turn, attempted

pytest.importorskip("bfcl_eval", reason="needs pip install --no-deps bfcl-eval")

SINGLE = ["simple", "multiple", "parallel", "parallel_multiple"]


def tasks_of(*categories: str, **config: Any) -> list[Task]:
    given = {"held_out_size": 5000, "params": {"categories": list(categories)}, **config}
    return list(load(schema.TaskConfig(name="bfcl", **given), seed=0, learns=False).held_out)


def offered_by(task: Task) -> list[dict[str, Any]]:
    settings = task.extra_info["environment"]
    return schemas(questions(settings["category"])[settings["id"]])


def possible(answers: dict[str, Any]) -> dict[str, Any]:
    """The first of the possible values of each argument, unless that is to leave it out."""

    def value(options: Sequence[Any]) -> Any:
        chosen = next(one for one in options if one != "")
        if isinstance(chosen, dict):
            return possible(chosen)
        if isinstance(chosen, list):
            return [possible(one) if isinstance(one, dict) else one for one in chosen]
        return chosen

    return {name: value(options) for name, options in answers.items() if any(one != "" for one in options)}


def right(task: Task) -> Sequence[Turn]:
    calls = [(name, possible(arguments)) for one in task.ground_truth for name, arguments in one.items()]
    return [calls] if calls else NOTHING


def wrong(task: Task) -> Sequence[Turn]:
    """Calls a function that is offered, with an argument that is nowhere possible."""
    return [[(offered_by(task)[0]["function"]["name"], {"nonsense": 1})]]


def conversation(task: Task) -> Sequence[Turn]:
    """The calls of the ground truth turn by turn, each turn ended by a word."""
    turns: list[Turn] = []
    for written in task.ground_truth:
        turns += [[_parsed(call, task)] for call in written]
        turns.append("Done.")
    return turns


def _parsed(call: str, task: Task) -> Call:
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    name = ast.unparse(tree.func)
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in offered_by(task)}
    positional = dict(zip(schemas[name]["properties"], map(ast.literal_eval, tree.args), strict=False))
    return name, {**positional, **{str(one.arg): ast.literal_eval(one.value) for one in tree.keywords}}


class TestSingleTurn:
    def test_possible_answers_are_right(self) -> None:
        tasks = [task for category in SINGLE for task in tasks_of(category, held_out_size=40)]
        found = attempted(tasks, right)
        assert [t.failure for t in found if t.failure] == []
        assert [t.task.id for t in found if t.reward != 1.0] == []
        assert all(t.turns == 1 and t.reward_parts["acc"] == 1.0 for t in found)

    def test_wrong_arguments_are_wrong_and_the_reason_is_kept(self) -> None:
        found = attempted(tasks_of(*SINGLE, "irrelevance", held_out_size=20), wrong)
        assert {t.reward for t in found} == {0.0}
        reasons = [t.segments[-1].text for t in found if t.task.data_source == "bfcl/simple"]
        assert all(reason.startswith(("Missing required parameter", "Unexpected")) for reason in reasons)
        assert reasons

    def test_to_call_nothing_is_right_where_no_function_fits(self) -> None:
        found = attempted(tasks_of(*SINGLE, "irrelevance", held_out_size=60), lambda task: NOTHING)
        assert len({t.task.data_source for t in found}) == 5
        for trajectory in found:
            assert trajectory.reward == float(trajectory.task.data_source == "bfcl/irrelevance")

    def test_a_call_of_an_unknown_function_counts_as_a_call(self) -> None:
        tasks = tasks_of("irrelevance", "simple", held_out_size=8)
        found = attempted(
            tasks,
            lambda task: [[*right(task)[0], ("made_up", {})]] if task.ground_truth else [[("made_up", {})]],
        )
        assert {t.reward for t in found} == {0.0}
        assert all(t.counts["tool_errors"] == 1 for t in found)

    def test_a_question_brings_its_own_functions(self) -> None:
        (trajectory,) = attempted(tasks_of("simple", held_out_size=1), right)
        (tool,) = offered_by(trajectory.task)
        assert tool["function"]["parameters"]["type"] == "object"
        assert tool["function"]["name"] in trajectory.segments[0].text

    def test_relevance_asks_for_any_call(self) -> None:
        tasks = tasks_of("live_relevance", held_out_size=3)
        assert {t.reward for t in attempted(tasks, wrong)} == {1.0}
        assert {t.reward for t in attempted(tasks, lambda task: NOTHING)} == {0.0}


class TestConversations:
    def test_the_calls_of_the_ground_truth_are_right(self) -> None:
        found = attempted(tasks_of("multi_turn_base", held_out_size=30), conversation)
        assert [t.failure for t in found if t.failure] == []
        assert [t.task.id for t in found if t.reward != 1.0] == []
        longest = max(found, key=lambda t: len(t.task.ground_truth))
        assert len(longest.task.ground_truth) > 1
        assert [s.source for s in longest.segments].count("environment") == len(longest.task.ground_truth) - 1

    def test_a_turn_without_its_calls_is_wrong(self) -> None:
        tasks = tasks_of("multi_turn_base", held_out_size=10)
        found = attempted(tasks, lambda task: [*conversation(task)[1:]])
        assert {t.reward for t in found} == {0.0}
        assert {t.reward for t in attempted(tasks, lambda task: NOTHING)} == {0.0}

    def test_an_attempt_that_runs_out_of_turns_is_wrong(self) -> None:
        (trajectory,) = attempted(tasks_of("multi_turn_base", held_out_size=1), conversation, max_turns=2)
        assert (trajectory.reward, trajectory.stop) == (0.0, "turns")
        assert "not all of the user's turns" in trajectory.segments[-1].text

    def test_attempts_leave_nothing_behind_and_do_not_touch_each_other(self) -> None:
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

        task = tasks_of("multi_turn_base", held_out_size=1)[0]
        twins = [
            Task(f"{task.id} {n}", task.prompt, task.ground_truth, extra_info=task.extra_info) for n in "ab"
        ]
        before = set(vars(multi_turn_utils))
        assert {t.reward for t in attempted(twins, conversation)} == {1.0}
        assert set(vars(multi_turn_utils)) == before

    def test_what_is_no_call_of_a_function_is_never_evaluated(self) -> None:
        from toolwright.tasks.bfcl_conversation import FunctionCallConversation
        from toolwright.tasks.environment import InvalidAction

        task = next(t for t in tasks_of("multi_turn_base") if "'power'" in str(offered_by(t)))
        settings = task.extra_info["environment"]
        world = FunctionCallConversation(settings["category"], settings["id"])
        for name, arguments in (
            ("exit", {}),
            ("power", {"base": 9, "exponent": 10**9}),
            ("power", {"base=1)+exit(": 1}),
        ):
            with pytest.raises(InvalidAction):
                world.call(name, arguments)
        assert world.turns == [[]]
        assert "16" in world.call("power", {"base": 4, "exponent": 2})
        assert "must be numbers" in world.call("power", {"base": "exit()", "exponent": 2})
        world.close()


def test_some_questions_may_be_learned_from_and_are_not_held_out() -> None:
    config = schema.TaskConfig(
        name="bfcl", train_size=100, held_out_size=5000, params={"categories": "multiple"}
    )
    tasks = load(config, seed=0)
    assert (len(tasks.train), len(tasks.held_out)) == (100, 100)
    assert not {task.id for task in tasks.train} & {task.id for task in tasks.held_out}


def test_an_unknown_category_is_named_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no category 'paralel' here; did you mean 'parallel'\?"):
        tasks_of("paralel")


def test_the_preset_reports_a_row_for_each_category(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = ["model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=32"]
    limits = ["model.context=16384", "rollout.max_tokens=8", "run.threads=1", "task.held_out_size=10"]
    words = ["task=bfcl", "task.params.categories=[simple,irrelevance]", "model.path=null", *tiny, *limits]
    assert main(["eval", *words, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    rows = {name for name in figures if name.endswith("/accuracy") and "bfcl" in name}
    assert rows == {"held_out/bfcl/irrelevance/accuracy", "held_out/bfcl/simple/accuracy"}
    assert figures["held_out/bfcl/irrelevance/accuracy_low"] > 0, "a cut turn has called nothing"
