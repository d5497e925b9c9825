"""Scoring trajectories: a user's function may raise, hang or die, and none of it is ever a reward."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.rewards.builder import scorer_for
from toolwright.rewards.function import ScoringFunction
from toolwright.rewards.item import of_task
from toolwright.trajectory import Failure, Segment, Task, Trajectory

FUNCTIONS = '''
"""A user's reward functions; each does what the answer tells it to."""
import math, os, sys, time
from beside import one

def equal(data_source, solution_str, ground_truth, extra_info):
    print("scoring", solution_str)
    os.write(1, b"from the depths\\n")
    if solution_str == "raise":
        raise ValueError("no such answer")
    if solution_str == "hang":
        time.sleep(600)
    if solution_str == "exit":
        sys.exit(0)
    if solution_str == "die":
        os._exit(3)
    if solution_str == "crash":
        os.kill(os.getpid(), 11)
    if solution_str == "lost":
        from toolwright.failures import InfrastructureFailure
        raise InfrastructureFailure("the judge is not there")
    odd = {"nan": math.nan, "inf": math.inf, "none": None, "text": "1.0", "list": [1.0], "no score": {"a": 1}}
    if solution_str in odd:
        return odd[solution_str]
    if solution_str == "parts":
        return {"score": 0.5, "format": True, "words": 3, "found": "an answer", "worth": math.nan}
    return one if solution_str == ground_truth else 0

def pid(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    return os.getpid()

def starts(solution_str):
    import subprocess
    child = subprocess.Popen(["sleep", "600"])
    if solution_str == "hang":
        open(os.environ["NOTE"], "w").write(str(child.pid))
        time.sleep(600)
    return child.pid

def batch(completions, ground_truth, level, **columns):
    assert set(columns) == {"prompts", "data_source", "extra_info", "num_turns", "counts", "stop"}
    if "hang" in completions:
        time.sleep(600)
    if "raise" in completions:
        raise ValueError("one of them")
    if "short" in completions:
        return [1.0]
    return [float("nan") if c == "nan" else (c == g) * l for c, g, l in zip(completions, ground_truth, level)]

def narrow(completions, ground_truth):
    return tuple(float(c == g) for c, g in zip(completions, ground_truth))

def wrong(a, b):
    return 0.0

async def later(data_source, solution_str, ground_truth, extra_info):
    return 0.0

class Later:
    async def __call__(self, solution_str):
        return 0.0

number = 5
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("one = 1\n")
    path = tmp_path / "user_rewards.py"
    path.write_text(FUNCTIONS)
    return path


@pytest.fixture
def scorer(file: Path) -> Iterator[Callable[..., Scorer]]:
    made: list[Scorer] = []

    def make(function: str, timeout_s: float = 120.0) -> Scorer:
        reward = schema.Reward(function=f"{file}:{function}", timeout_s=timeout_s)
        made.append(Scorer(reward, default="exact"))
        return made[-1]

    yield make
    for each in made:
        each.close()


def attempt(answer: str, truth: Any = "yes", **extra: Any) -> Trajectory:
    task = Task("t", [{"role": "user", "content": "?"}], truth, "here", {"level": 2, **extra})
    return Trajectory(task, "g", segments=[Segment("prompt", [], text="?"), Segment("tool", [], text=answer)])


def scored(scorer: Scorer, *answers: str) -> list[Trajectory]:
    attempts = [attempt(answer) for answer in answers]
    asyncio.run(scorer.score(attempts))
    return attempts


def alive(pid: int) -> bool:
    """Whether the process runs; one that was killed but not yet collected by init does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def gone(pid: int) -> bool:
    """A killed process takes a moment to disappear."""
    wait_until(lambda: not alive(pid), f"{pid} has ended")
    return True


def test_a_built_in_scorer_sets_reward_and_parts_in_this_process() -> None:
    right, wrong = attempt("12", "12"), attempt("13", "12")
    asyncio.run(Scorer(schema.Reward(), default="exact").score([right, wrong]))
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    made = attempt("3+4", {"numbers": [3, 4], "target": 7})
    asyncio.run(Scorer(schema.Reward(), default="countdown").score([made]))
    assert (made.reward, made.reward_parts) == (1.0, {"well_formed": 1.0})


def test_scoring_changes_nothing_but_the_reward() -> None:
    before, after = attempt("12", "12"), attempt("12", "12")
    asyncio.run(Scorer(schema.Reward(), default="exact").score([after]))
    after.reward = None
    assert after == before


def test_an_attempt_that_failed_already_is_not_scored() -> None:
    lost = attempt("12", "12")
    lost.failure = Failure("infrastructure", "the engine died")
    asyncio.run(Scorer(schema.Reward(), default="exact").score([lost]))
    assert (lost.reward, lost.failure.message) == (None, "the engine died")


def test_a_ground_truth_that_cannot_be_used_is_a_failure() -> None:
    made = attempt("12", ["12"])
    asyncio.run(Scorer(schema.Reward(function="numeric"), default="exact").score([made]))
    assert made.reward is None
    assert made.failure.kind == "task"
    assert "found list" in made.failure.message


def test_a_users_function_scores_in_another_process(scorer: Callable[..., Scorer]) -> None:
    first, second = scored(scorer("pid"), "a", "b")
    assert first.reward == second.reward != os.getpid()


def test_a_users_function_returns_a_number_or_parts(scorer: Callable[..., Scorer]) -> None:
    yes, no, parts = scored(scorer("equal"), "yes", "no", "parts")
    assert (yes.reward, no.reward) == (1.0, 0.0)
    assert (parts.reward, parts.reward_parts) == (0.5, {"format": 1.0, "words": 3.0})


def test_an_exception_is_a_failure_with_its_traceback(scorer: Callable[..., Scorer]) -> None:
    bad, good, leaving, lost = scored(scorer("equal"), "raise", "yes", "exit", "lost")
    assert bad.reward is None
    assert bad.failure.kind == "task"
    assert 'raise ValueError("no such answer")' in bad.failure.message
    assert "rewards.py:equal" in bad.failure.message
    assert "toolwright/rewards" not in bad.failure.message, "frames of ours say nothing to the author"
    assert good.reward == 1.0
    assert "SystemExit" in leaving.failure.message
    assert lost.failure.kind == "infrastructure"


def test_a_reason_why_nothing_is_scored_is_logged_once(
    scorer: Callable[..., Scorer], caplog: pytest.LogCaptureFixture
) -> None:
    made = scorer("equal")
    for answer in ("raise", "raise", "nan", "nan", "raise"):
        scored(made, answer)
    assert [record.getMessage().count("no such answer") for record in caplog.records] == [2, 0]
    assert "nan (float), not a finite number" in caplog.records[1].getMessage()


@pytest.mark.parametrize("answer", ["nan", "inf", "none", "text", "list", "no score"])
def test_a_score_that_is_not_a_finite_number_is_a_failure(answer: str, file: Path) -> None:
    from toolwright.registry import load_object
    from toolwright.rewards.function import ScoringFunction

    sys.path.append(str(file.parent))
    try:
        function = ScoringFunction("f", load_object(f"{file}:equal"))
    finally:
        sys.path.remove(str(file.parent))
    item = {"data_source": "", "solution_str": answer, "ground_truth": "", "extra_info": {}, "prompt": []}
    (verdict,) = function.judge([item])
    assert verdict.score is None
    assert verdict.kind == "task"
    assert "not a finite number" in verdict.message or "without 'score'" in verdict.message


@pytest.mark.parametrize("score", [1e308, -1e39, 10**400])
def test_a_score_that_float32_cannot_hold_is_a_failure(score: float) -> None:
    (verdict,) = ScoringFunction("f", lambda solution_str: score).judge(
        [{"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, "prompt": []}]
    )
    assert (verdict.score, verdict.kind) == (None, "task")
    assert "not a finite number" in verdict.message


@pytest.mark.parametrize("steps", [0.5, "0.5", {"a": 1}, [None], [float("nan")]])
def test_step_rewards_that_are_no_list_of_numbers_are_a_failure(steps: Any) -> None:
    (verdict,) = ScoringFunction("f", lambda solution_str: {"score": 1.0, "step_rewards": steps}).judge(
        [{"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, "prompt": []}]
    )
    assert (verdict.score, verdict.kind) == (None, "task")
    assert "f returned step_rewards that are not a list of finite numbers: " in verdict.message


def test_step_rewards_may_be_an_array() -> None:
    import numpy as np

    steps = np.array([0.5, 0.0])
    (verdict,) = ScoringFunction("f", lambda solution_str: {"score": 1.0, "step_rewards": steps}).judge(
        [{"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, "prompt": []}]
    )
    assert verdict.step_rewards == [0.5, 0.0]


def test_a_dict_without_a_score_may_have_any_keys() -> None:
    (verdict,) = ScoringFunction("f", lambda solution_str: {"acc": 1, 2: 3}).judge(
        [{"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, "prompt": []}]
    )
    assert verdict.message == "f returned a dict without 'score': 2, acc"


def test_numpy_scalars_are_numbers() -> None:
    import numpy as np

    item = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": {}, "prompt": []}
    for value in (np.float32(0.5), np.float64(0.5), np.array(0.5)):
        assert ScoringFunction("f", lambda solution_str, v=value: v).judge([item])[0].score == 0.5
    assert ScoringFunction("f", lambda solution_str: np.bool_(True)).judge([item])[0].score == 1.0
    assert ScoringFunction("f", lambda completions: np.array([0.5])).judge([item])[0].score == 0.5


def test_a_hung_function_costs_one_limit_and_the_next_is_scored(scorer: Callable[..., Scorer]) -> None:
    made = scorer("equal", timeout_s=3)
    before, hung, after = scored(made, "yes", "hang", "yes")
    assert (before.reward, hung.reward, after.reward) == (1.0, None, 1.0)
    assert hung.failure.kind == "task"
    assert "rewards.py:equal did not return within reward.timeout_s=3 s" in hung.failure.message


def test_the_event_loop_runs_on_while_a_function_is_scored(scorer: Callable[..., Scorer]) -> None:
    made = scorer("equal", timeout_s=1)
    ticks = 0

    async def watch() -> None:
        nonlocal ticks
        scoring = asyncio.create_task(made.score([attempt("hang")]))
        while not scoring.done():
            ticks += 1
            await asyncio.sleep(0.02)

    asyncio.run(watch())
    assert ticks > 10


def test_a_process_that_dies_is_a_failure_of_the_infrastructure(scorer: Callable[..., Scorer]) -> None:
    died, crashed, after = scored(scorer("equal"), "die", "crash", "yes")
    assert died.failure.kind == crashed.failure.kind == "infrastructure"
    assert "died with exit code 3" in died.failure.message
    assert "exit code -11 (SIGSEGV)" in crashed.failure.message
    assert after.reward == 1.0


def test_verls_batch_form_gets_its_four_lists_and_its_settings() -> None:
    def scores(data_sources, solution_strs, ground_truths, extra_infos, scale=1.0, **rest):  # type: ignore[no-untyped-def]
        assert not rest, rest
        return [scale * (said == true) for said, true in zip(solution_strs, ground_truths, strict=True)]

    function = ScoringFunction("f", scores, {"scale": 2.0})
    right, wrong = (of_task(Task("t", [], ground_truth=truth)) for truth in ("", "4"))
    assert [verdict.score for verdict in function.judge([right, wrong])] == [2.0, 0.0]
    assert function.reads_truth


def test_a_batch_function_gets_columns(scorer: Callable[..., Scorer]) -> None:
    assert [t.reward for t in scored(scorer("batch"), "yes", "no", "yes")] == [2.0, 0.0, 2.0]
    assert [t.reward for t in scored(scorer("narrow"), "yes", "no")] == [1.0, 0.0]


def test_a_column_that_no_task_has_is_an_error_before_the_first_attempt(
    scorer: Callable[..., Scorer],
) -> None:
    made = scorer("batch")
    made.check([attempt("yes").task])
    bare = Task("t", [{"role": "user", "content": "?"}], "yes", extra_info={"answer": "yes"})
    with pytest.raises(UserError, match=r"task t: the reward function takes `level`.*it has .*, answer\."):
        made.check([attempt("yes").task, bare])
    scorer("narrow").check([bare])


def test_a_batch_that_cannot_be_scored_fails_whole_and_a_bad_score_alone(
    scorer: Callable[..., Scorer],
) -> None:
    made = scorer("batch", timeout_s=3)
    for bad, why in (("raise", "one of them"), ("short", "a list of 2 scores"), ("hang", "for a batch of 2")):
        attempts = scored(made, bad, "yes")
        assert [t.reward for t in attempts] == [None, None]
        assert all(why in t.failure.message for t in attempts)
    nan, good = scored(made, "nan", "yes")
    assert (nan.reward, good.reward) == (None, 2.0)


def test_what_a_function_prints_goes_to_stderr(
    scorer: Callable[..., Scorer], capfd: pytest.CaptureFixture[str]
) -> None:
    scored(scorer("equal"), "yes", "hello")
    captured = capfd.readouterr()
    assert "scoring hello" in captured.err
    assert "from the depths" in captured.err
    assert captured.out == ""


def test_closing_leaves_no_process(scorer: Callable[..., Scorer]) -> None:
    made = scorer("pid")
    (only,) = scored(made, "x")
    made.close()
    assert gone(int(only.reward))
    made.close()
    (after,) = scored(made, "x")
    assert after.failure.kind == "infrastructure"


def test_child_processes_of_a_scoring_function_end_with_it(
    scorer: Callable[..., Scorer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTE", str(tmp_path / "note"))
    made = scorer("starts", timeout_s=3)
    scored(made, "hang")
    assert gone(int((tmp_path / "note").read_text()))
    (left,) = scored(made, "go")
    assert alive(int(left.reward))
    made.close()
    assert gone(int(left.reward))


def test_closing_does_not_wait_for_a_function_that_hangs(scorer: Callable[..., Scorer]) -> None:
    made = scorer("equal", timeout_s=600)

    async def closed_meanwhile() -> list[Trajectory]:
        attempts = [attempt("hang"), attempt("yes")]
        scoring = asyncio.create_task(made.score(attempts))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(made.close)
        await scoring
        return attempts

    began = time.monotonic()
    attempts = asyncio.run(closed_meanwhile())
    assert time.monotonic() - began < 300
    assert {t.failure.kind for t in attempts} == {"infrastructure"}


def test_the_process_ends_when_its_parent_does(file: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from toolwright.config import schema\n"
        "from toolwright.rewards import Scorer\n"
        "from toolwright.trajectory import Task, Trajectory\n"
        f"scorer = Scorer(schema.Reward(function={f'{file}:pid'!r}), default='exact')\n"
        "t = Trajectory(Task('t', []), 'g'); asyncio.run(scorer.score([t]))\n"
        "print(int(t.reward), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert gone(int(parent.stdout))


def test_a_file_or_a_module_is_found_whatever_the_working_directory(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    scorers = [
        Scorer(schema.Reward(function=f, timeout_s=3), default="")
        for f in ("user_rewards.py:equal", "user_rewards:equal")
    ]
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    for made in scorers:
        hung, after = scored(made, "hang", "yes")  # the second is scored by a process started from here
        assert hung.failure is not None
        assert after.reward == 1.0
        made.close()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("equall", "has no 'equall'; did you mean 'equal'?"),
        ("wrong", r"has the signature \(a, b\); expected f\(data_source"),
        ("later", "is async"),
        ("Later", "is async"),
        ("number", "is a int, not a function"),
    ],
)
def test_a_mistake_in_naming_a_function_is_an_error_at_once(file: Path, function: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Scorer(schema.Reward(function=f"{file}:{function}"), default="exact")


def test_a_file_that_cannot_be_imported_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        Scorer(schema.Reward(function=f"{tmp_path}/none.py:f"), default="exact")
    with pytest.raises(UserError, match="no module named 'nowhere_at_all'"):
        Scorer(schema.Reward(function="nowhere_at_all:f"), default="exact")
    broken = tmp_path / "broken.py"
    broken.write_text("import not_installed_here\n")
    with pytest.raises(UserError, match=r"(?s)cannot be imported.*not_installed_here"):
        Scorer(schema.Reward(function=f"{broken}:f"), default="exact")
    broken.write_text("import os; os._exit(7)\n")
    with pytest.raises(UserError, match="died with exit code 7"):
        Scorer(schema.Reward(function=f"{broken}:f"), default="exact")


def test_an_unknown_scorer_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown scorer 'exakt'; known: .*exact"):
        Scorer(schema.Reward(function="exakt"), default="exact")


def test_a_data_source_is_judged_by_its_family_if_it_has_no_scorer_of_its_own() -> None:
    assert scorer_for("reasoning_gym/chain_sum") == "reasoning_gym"
    assert scorer_for("openai/gsm8k") == "openai/gsm8k", "it is registered itself"
    assert scorer_for("nobody/knows") == "nobody/knows"
