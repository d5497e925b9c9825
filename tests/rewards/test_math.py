"""Mathematical equality, by math-verify in processes that can be killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rewards.attempts import attempt, score, scorer
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.trajectory import Task


@pytest.fixture(scope="module")
def math() -> Iterator[Scorer]:
    made = scorer("math", workers=1, timeout_s=120)
    yield made
    made.close()


EQUAL = [
    ("So it is \\boxed{\\frac{1}{2}}.", "0.5"),
    ("\\boxed{x^2+2x+1}", "(x+1)^2"),
    ("the answer is $\\{2, 1\\}$", "\\{1,2\\}"),
    ("\\boxed{3\\sqrt{13}}", "\\sqrt{117}"),
    ("\\boxed{70}", 70),
    ("\\boxed{70}", "70"),
    ("\\boxed{70}", "$70$"),
    ("\\boxed{70}", "we find \\boxed{70}"),
    ("At first I thought \\boxed{1}.\n\nBut it is \\boxed{2}.", "2"),
    ("\\boxed{1} and \\boxed{2}", "1,2"),
    ("\\boxed{1} and \\boxed{2}", "2"),
    ("First \\boxed{3}, \\boxed{4}, then \\boxed{5}.", "5"),
    ("long ago " * 5000 + "\\boxed{7}" + " as I said" * 5000, "7"),
]
DIFFERENT = [
    ("\\boxed{\\frac{1}{3}}", "0.5"),
    ("no idea", "2"),
    ("", "2"),
    ("\\boxed{", "2"),
    ("\\boxed{\\frac{}{}}", "2"),
    ("\\boxed{)(}", "2"),
    ("(" * 50_000, "2"),
    ("\\boxed{" * 2000, "2"),
]


def test_math_scores_1_for_equal_answers_and_0_for_others(math: Scorer) -> None:
    good, bad = [attempt(*case) for case in EQUAL], [attempt(*case) for case in DIFFERENT]
    assert score(math, *good) == [1.0] * len(EQUAL), [t.failure for t in good]
    assert score(math, *bad) == [0.0] * len(DIFFERENT), [t.failure for t in bad]


def test_strict_math_needs_a_box() -> None:
    strict = scorer("math", params={"math": {"strict": True}}, workers=1)
    try:
        assert score(strict, attempt("it is $5$", "5"), attempt("\\boxed{5}", "5")) == [0.0, 1.0]
    finally:
        strict.close()


@pytest.mark.parametrize("truth", ["\\frac{}{}", "", ["5"], None, True, {"answer": 5}])
def test_a_ground_truth_that_is_not_mathematics_is_an_error_before_the_first_attempt(
    truth: Any, math: Scorer
) -> None:
    good = [Task(f"good {n}", [], str(n)) for n in range(20)]
    with pytest.raises(UserError, match=r"task bad: .*ground truth"):
        math.check([*good, Task("bad", [], truth), *good])
    made = attempt("\\boxed{5}", truth)
    assert score(math, made) == [None]
    assert made.failure.kind == "task"


def test_an_endless_comparison_is_killed_in_time_and_is_a_failure() -> None:
    endless = ["\\boxed{9^{9^{9^9}}}", "9**9**9**9", "\\boxed{" + "(" * 100_000 + "1" + ")" * 100_000 + "}"]
    made = scorer("math", workers=2, timeout_s=3)
    attempts = [attempt(answer, "3") for answer in [*endless, "\\boxed{3}", "\\boxed{4}"]]
    try:
        assert score(made, *attempts) == [None, None, None, 1.0, 0.0]
    finally:
        made.close()
    for lost in attempts[:3]:
        assert lost.failure.kind == "task"
        assert "math did not return within reward.timeout_s=3 s" in lost.failure.message


def test_an_exception_of_math_verify_is_a_failure_with_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    import math_verify

    from toolwright.rewards import SCORERS
    from toolwright.rewards.function import ScoringFunction
    from toolwright.rewards.item import of_attempt

    def fails(*_: Any, **__: Any) -> bool:
        raise RecursionError("too deep")

    monkeypatch.setattr(math_verify, "verify", fails)
    function = ScoringFunction("math", SCORERS.get("math").target)
    (verdict,) = function.judge([of_attempt(attempt("\\boxed{3}", "3"))])
    assert (verdict.score, verdict.kind) == (None, "task")
    assert "math raised RecursionError" in verdict.message


def test_dapos_math_is_1_or_minus_1_by_what_follows_answer() -> None:
    made = scorer("aime2024", workers=1, timeout_s=120)  # verl knows it by how it begins
    said = ["Answer: $34$", "so \\boxed{34}", "Answer: \\boxed{34}", "it is 34", "\\boxed{34}\nAnswer: 35"]
    attempts = [attempt(text, "34") for text in said]
    assert score(made, *attempts) == [1.0, 1.0, 1.0, -1.0, -1.0]
    assert [one.reward_parts["acc"] for one in attempts] == [1.0, 1.0, 1.0, 0.0, 0.0]
    made.close()


def test_geometry_is_paid_for_its_thoughts_too() -> None:
    made = scorer("hiyouga/geometry3k", workers=1, timeout_s=120)
    said = [
        "<think>a</think> \\boxed{4}",
        "\\boxed{4}",
        "<think>a</think> \\boxed{5}",
        "<think>\\boxed{5}</think>",
    ]
    assert score(made, *(attempt(text, "4") for text in said)) == pytest.approx([1.0, 0.9, 0.1, 0.0])
    made.close()
