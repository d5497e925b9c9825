"""Weighted sums, settings, and what a scorer is told about how an attempt went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.rewards.attempts import attempt, said, score, scorer
from toolwright.cli.config import main as show_config
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.evaluation import right
from toolwright.rewards import Scorer
from toolwright.trajectory import Segment, Task, Trajectory

FUNCTIONS = """
import os, time
from pathlib import Path

def kind(data_source, solution_str, ground_truth, extra_info, *, scale=1.0):
    return scale * extra_info["num_turns"]

def told(solution_str, extra_info, turns, counts, stop, tokens, step_rewards, prompt):
    assert extra_info == {"num_turns": 2, "counts": {"tool_calls": 1}, "stop": "eos", "mine": 5}
    assert (turns, counts, stop, tokens) == (["<x>", "12"], {"tool_calls": 1}, "eos", 4)
    assert step_rewards == [0.25, None] and prompt[0]["role"] == "user"
    return 1.0

def any_keyword(data_source, solution_str, ground_truth, extra_info, **kwargs):
    return float(len(kwargs))

def batch(completions, num_turns, counts, stop, mine, bonus=0.0, **columns):
    return [n + c.get("tool_calls", 0) + m + bonus for n, c, m in zip(num_turns, counts, mine)]

def meets(solution_str):
    here = Path(__file__).with_name("here")
    here.mkdir(exist_ok=True)
    (here / str(os.getpid())).touch()
    while solution_str == "hang" or len(list(here.iterdir())) < 4:
        time.sleep(0.02)
    return 1.0

def by_turn(turns, ground_truth):
    steps = [float(ground_truth in turn) for turn in turns]
    return {"score": sum(steps), "step_rewards": steps, "note": 1}

def by_turn_of_all(completions):
    return [{"score": 1, "step_rewards": [0.5, 0.25]} for _ in completions]

def half_of_them(turns):
    return {"score": 1, "step_rewards": [1.0]}

def no_numbers(turns):
    return {"score": 1, "step_rewards": [1.0, float("nan")]}

def fails(solution_str):
    raise ValueError("not today")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


def tool_use() -> Trajectory:
    """Two turns with a tool's answer between them."""
    task = Task("t", [{"role": "user", "content": "6+6"}], "12", "arithmetic", {"mine": 5})
    segments = [
        Segment("prompt", [], text="6+6"),
        said("<x>", 0.25),
        Segment("tool", [7], text="99"),
        said("12"),
    ]
    return Trajectory(task, "g", segments=segments, stop="eos", counts={"tool_calls": 1})


def test_a_sum_records_its_parts_and_acc_is_the_right_answer() -> None:
    made = scorer("numeric", parts={"format": 0.1, "task": 1.0}, params={"format": {"tags": ["answer"]}})
    both, answer, form = (attempt(text, "5") for text in ("<answer>5</answer>", "5", "<answer>6</answer>"))
    try:
        assert score(made, both, answer, form) == pytest.approx([1.1, 1.0, 0.1])
    finally:
        made.close()
    assert both.reward_parts == {"format": 1.0, "task": 1.0, "acc": 1.0}
    assert form.reward_parts == {"format": 1.0, "task": 0.0, "acc": 0.0}
    assert [right(t) for t in (both, answer, form)] == [True, True, False]


def test_further_numbers_of_a_part_are_recorded_under_its_name() -> None:
    made = scorer("", parts={"f1": 1.0, "countdown": -0.5, "length": 1}, params={"length": {"most": 4}})
    found = attempt("3+4", {"numbers": [3, 4], "target": 7})
    assert score(made, found) == [None]  # f1 cannot use that truth, and the sum is never partial
    assert "for scorer 'f1'" in found.failure.message
    made = scorer("", parts={"countdown": -0.5, "length": 1}, params={"length": {"most": 4}})
    found = attempt("3+4", {"numbers": [3, 4], "target": 7})
    assert score(made, found) == [0.0]
    assert found.reward_parts == {
        "countdown": 1.0,
        "countdown/well_formed": 1.0,
        "length": 0.5,
        "acc": 1.0,
    }


def test_a_users_function_is_a_part_too_and_one_that_fails_leaves_no_score(file: Path) -> None:
    made = scorer("exact", parts={"task": 1.0, "turns": 0.5}, params=own(f"{file}:kind", scale=4))
    found = attempt("a", "a")
    try:
        assert score(made, found) == [3.0]
    finally:
        made.close()
    assert found.reward_parts == {"task": 1.0, "turns": 4.0, "acc": 1.0}
    made = scorer("exact", parts={"task": 1.0, "turns": 0.5}, params=own(f"{file}:fails"))
    lost = attempt("a", "a")
    try:
        assert score(made, lost) == [None]
    finally:
        made.close()
    assert lost.failure.kind == "task"
    assert 'raise ValueError("not today")' in lost.failure.message


def own(function: str, **settings: Any) -> dict[str, dict[str, Any]]:
    return {"turns": {"function": function, **settings}}


def test_one_scorer_may_be_two_parts() -> None:
    settings = {"box": {"function": "numeric", "strict": True}}
    made = scorer("exact", parts={"numeric": 1.0, "box": 1.0}, params=settings)
    assert score(made, attempt("5", "5"), attempt("\\boxed{5}", "5")) == [1.0, 2.0]


def test_functions_of_either_form_get_the_facts_of_the_attempt(file: Path) -> None:
    for name, params, value in (
        ("told", {}, 1.0),
        ("any_keyword", {}, 0.0),
        ("any_keyword", {"a": 1, "b": 2}, 2.0),
        ("batch", {"bonus": 0.5}, 8.5),
    ):
        made = scorer("", function=f"{file}:{name}", params={name: params} if params else {})
        found = tool_use()
        try:
            assert score(made, found) == [value], found.failure
        finally:
            made.close()


def test_what_a_tool_printed_is_not_the_policys_answer() -> None:
    made = scorer("numeric")
    silent = tool_use()
    silent.segments[-1].text = "I cannot say"
    silent.segments[-2].text = "12"
    assert score(made, tool_use(), silent) == [1.0, 0.0]


def test_scores_run_side_by_side_and_a_hang_costs_one_limit_of_one_item(file: Path) -> None:
    """Nothing is scored before four processes are at it."""
    made = scorer("", function=f"{file}:meets", workers=4, timeout_s=60)
    try:
        assert score(made, *(attempt("x") for _ in range(8))) == [1.0] * 8
    finally:
        made.close()
    made = scorer("", function=f"{file}:meets", workers=4, timeout_s=3)
    try:
        assert score(made, attempt("hang"), *(attempt("x") for _ in range(9))) == [None] + [1.0] * 9
    finally:
        made.close()


def test_the_scorers_of_shape_and_effort() -> None:
    thrifty, busy = tool_use(), tool_use()
    busy.counts = {"tool_calls": 4, "tool_errors": 1, "format_faults": 1}
    assert score(scorer("tool_efficiency"), thrifty, busy) == pytest.approx([1.0, 0.2])
    short, long = attempt("x"), attempt("x")
    long.segments[-1].tokens = [1] * 7
    assert score(scorer("length", params={"length": {"free": 4, "most": 8}}), short, long) == [1.0, 0.25]


def test_the_environment_scores_by_what_it_gave() -> None:
    walked, won = tool_use(), tool_use()
    won.segments[-1].reward = 0.75
    counted = tool_use()
    counted.counts["success"] = 1
    attempts = [walked, won, counted]
    assert score(scorer("environment"), *attempts) == [0.25, 1.0, 0.25]
    assert [t.reward_parts["acc"] for t in attempts] == [0.0, 1.0, 1.0]
    only = scorer("environment", params={"environment": {"success_only": True}})
    assert score(only, *attempts) == [0.0, 1.0, 1.0]
    nothing = attempt("x")
    assert score(scorer("environment"), nothing) == [None]
    assert "no step of this attempt has a reward" in nothing.failure.message


def test_a_scorer_may_say_what_each_turn_earned(file: Path) -> None:
    first, second = tool_use(), tool_use()
    assert score(scorer("", function=f"{file}:by_turn"), first) == [1.0]
    assert (first.step_rewards, first.reward_parts) == ([0.0, 1.0], {"note": 1})
    assert score(scorer("", function=f"{file}:by_turn_of_all"), first, second) == [1.0, 1.0]
    assert first.step_rewards == second.step_rewards == [0.5, 0.25]
    assert score(scorer("exact"), first) == [1.0]
    assert first.step_rewards == []


def test_step_rewards_are_weighted_like_the_parts_that_gave_them(file: Path) -> None:
    both = {"mine": 2.0, "step_rewards": 0.5, "exact": 1.0}
    made = scorer("exact", parts=both, params={"mine": {"function": f"{file}:by_turn"}})
    attempt = tool_use()
    assert score(made, attempt) == [2.0 + 0.5 * 0.25 + 1.0]
    assert attempt.step_rewards == [0.125, 2.0], "the answer's own score is nobody's but the end's"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("half_of_them", "1 step_rewards for an attempt of 2 turns"),
        ("no_numbers", "returned step_rewards that are not a list of finite numbers"),
    ],
)
def test_step_rewards_are_one_finite_number_a_turn(function: str, message: str, file: Path) -> None:
    attempt = tool_use()
    assert score(scorer("", function=f"{file}:{function}"), attempt) == [None]
    assert message in attempt.failure.message


def test_the_rewards_of_steps_are_a_part_that_may_be_nothing() -> None:
    assert score(scorer("step_rewards"), tool_use(), attempt("x")) == [0.25, 0.0]


@pytest.mark.parametrize(
    ("text", "params", "value"),
    [
        ("<think>a</think><answer>b</answer>", {}, 1),
        ("<think>a</think> so <answer>b</answer>.", {}, 1),
        ("<answer>b</answer><think>a</think>", {}, 0),
        ("<think>a<think></think><answer>b</answer>", {}, 0),
        ("<think>a</think><answer>b", {}, 0),
        ("", {}, 0),
        ("12", {"pattern": "[0-9]+"}, 1),
        ("12 ", {"pattern": "[0-9]+"}, 0),
        ("a\nb", {"pattern": "a.b"}, 1),
    ],
)
def test_format_by_tags_or_by_pattern(text: str, params: dict[str, Any], value: float) -> None:
    made = scorer("format", params={"format": params})
    try:
        assert score(made, attempt(text)) == [value]
    finally:
        made.close()


def test_a_pattern_that_never_ends_is_killed_and_an_invalid_one_is_an_error_at_once() -> None:
    made = scorer("format", timeout_s=3, params={"format": {"pattern": "(a+)+b"}})
    endless, quick = attempt("a" * 60), attempt("aab")
    try:
        assert score(made, endless, quick) == [None, 1.0]
    finally:
        made.close()
    assert "format did not return within reward.timeout_s=3 s" in endless.failure.message
    made = scorer("format", params={"format": {"pattern": "("}})
    try:
        with pytest.raises(UserError, match="format raised"):
            made.check([Task("t", [])])
    finally:
        made.close()


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ({"params": {"gsm8k": {"strickt": True}}}, "did you mean 'strict'"),
        ({"params": {"gsm8k": {"strict": "perhaps"}}}, "reward.params.gsm8k.strict='perhaps' does not work"),
        ({"params": {"gsm8k": {"solution_str": "x"}}}, "is set by the run"),
        (
            {"params": {"math": {"strict": True}}},
            "reward.params.math does not belong to a scorer of this run",
        ),
        ({"params": {"gsm": {"strict": True}}}, "did you mean 'gsm8k'"),
        ({"function": "length"}, "scorer 'length' needs the setting reward.params.length.most"),
    ],
)
def test_a_mistake_in_the_settings_is_an_error_at_once(reward: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Scorer(schema.Reward(**reward), default="openai/gsm8k")


def test_settings_reach_the_scorer_of_a_data_source() -> None:
    made = Scorer(schema.Reward(params={"gsm8k": {"strict": True}}), default="openai/gsm8k")
    assert score(made, attempt("it is 5", "5"), attempt("#### 5", "5")) == [0.0, 1.0]
    mixed = Scorer(schema.Reward(params={"gsm8k": {"strict": True}}), default="data_source")
    found = [attempt("it is 5", "5", source) for source in ("openai/gsm8k", "arithmetic")]
    assert score(mixed, *found) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["reward.parts.maths=1.0"], "reward.parts.maths: unknown scorer 'maths'; did you mean 'math'"),
        (["reward.function=math", "reward.parts.format=0.1"], "set one of them"),
        (["reward.parts.style=1", "reward.params.style.function=stile"], "style.function: unknown scorer"),
        (["reward.parts.math=much"], "reward.parts.math=much: expected a number"),
        (["reward.workers=0"], "reward.workers=0"),
    ],
)
def test_a_mistake_in_the_parts_is_an_error_that_names_the_setting(
    arguments: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        show_config(arguments)


def test_parts_can_be_written_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reward.parts={math: 1.0, style: 0.1}", "reward.params.style.function=my/file.py:style"]
    assert show_config(arguments) == 0
    shown = capsys.readouterr().out
    assert "0.1" in shown
    assert "my/file.py:style" in shown
