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
# What people write for the same answer.
WRITTEN = [
    ("\\boxed{\\frac12}", "\\frac{1}{2}"),
    ("\\boxed{1\\frac{1}{2}}", "\\frac{3}{2}"),
    ("\\boxed{90^\\circ}", "90"),
    ("\\boxed{90\\text{ degrees}}", "90^\\circ"),
    ("\\boxed{1{,}000}", "1000"),
    ("\\boxed{1,000}", "1000"),
    ("\\boxed{[-2,7]}", "x \\in [-2,7]"),
    ("\\boxed{\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}}", "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
    ("\\boxed{Evelyn}", "\\text{Evelyn}"),
    ("\\boxed{-5i+6}", "6-5i"),
    ("\\boxed{10}", "10\\%"),
    ("\\boxed{5 \\text{ cm}^2}", "5"),
    ("\\boxed{x=5}", "5"),
    ("\\boxed{2x - y + 3 = 0}", "y=2x+3"),
    ("\\boxed{-2,1}", "1,-2"),
    ("$\\boxed{1}$ and $\\boxed{-2}$", "1,-2"),
    ("The roots are \\boxed{1}, \\boxed{2}, and \\boxed{3}.", "1,2,3"),
    ("\\boxed{(3, \\pi/2)}", "\\left( 3, \\frac{\\pi}{2} \\right)"),
    ("\\boxed{1.5 \\times 10^3}", "1500"),
    ("\\boxed{0.00000160}", "1.6 \\times 10^{-6}"),
    ("\\boxed{0.333333}", "\\frac{1}{3}"),
    ("The answer is 5.", "5"),
    ("\\boxed{5.}", "5"),
    ("\\boxed {5}", "5"),
    ("\\fbox{5}", "5"),
    ("\\boxed{５}", "5"),
    ("\\boxed{90°}", "90^\\circ"),
    ("\\boxed{x²}", "x^2"),
    ("\\boxed{½}", "\\frac12"),
    ("\\boxed{1\\,000\\,000}", "1000000"),
    ("\\boxed{10\\%}", "10\\%"),
    ("\\boxed{10\\%}", "0.1"),
    ("\\boxed{2+3 = 5}", "5"),
    ("\\boxed{x = 2+3 = 5}", "5"),
    ("\\boxed{2^{10}}", "1024"),
    ("\\boxed{-\\frac{1}{2}}", "-0.5"),
    ("\\boxed{\\boxed{5}}", "5"),
]
# Two answers in one attempt, or one that is near every truth.
HEDGED = [
    ("\\boxed{7}. The final answer is $5$. I hope it is correct.", "5"),
    ("The final answer is $5$. I hope it is correct. So \\boxed{7}", "5"),
    ("final answer is $5$ \\boxed{7}", "5"),
    ("\\boxed{7}\n\nAnswer: $5$", "5"),
    ("\\boxed{} The answer is $5$", "5"),
    ("\\boxed{5} and \\boxed{6}", "5"),
    ("\\boxed{5, 6}", "5"),
    ("\\boxed{5 \\text{ or } 6}", "5"),
    ("\\boxed{x = 3 \\text{ or } x = 4}", "3"),
    ("\\boxed{\\pm 5}", "5"),
    ("\\boxed{5 \\lor 6}", "6"),
    ("\\boxed{5 \\cup 6}", "6"),
    ("\\boxed{[0,10]}", "5"),
    ("\\boxed{\\mathbb{R}}", "5"),
    ("$5$ or $6$", "5"),
    ("\\boxed{0.0}", "10^{-10}"),
    ("\\boxed{0.0}", "1.6 \\times 10^{-19}"),
    ("\\boxed{0=0}", "y=2x+1"),
    ("\\boxed{\\{1,2,3\\}}", "\\{1,2\\}"),
    ("\\boxed{" + "1,2" + "} and" + " " * 100_000 + "\\boxed{3}", "1"),
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


@pytest.mark.parametrize(("said", "truth"), WRITTEN)
def test_an_answer_counts_however_it_is_written(said: str, truth: str, math: Scorer) -> None:
    assert score(math, attempt(said, truth)) == [1.0]


@pytest.mark.parametrize(("said", "truth"), HEDGED)
def test_an_attempt_has_one_answer(said: str, truth: str, math: Scorer) -> None:
    assert score(math, attempt(said, truth)) == [0.0]


@pytest.mark.parametrize(
    ("asked", "said", "truth"),
    [
        ("What is $513^2 - 487^2$?", "513^2-487^2", "26000"),
        ("What is 2+3?", "3 + 2", "5"),
        ("Compute $12 \\cdot 34$.", "34 \\cdot 12", "408"),
        ("Find $\\log_2 64$.", "\\log_{2} 64", "6"),
        ("Find $\\sum_{i=1}^{4} i$.", "x = \\sum_{i=1}^{4} i", "10"),
        ("Find $\\int_0^1 2x\\,dx$.", "\\int_0^1 2x dx", "1"),
        ("Simplify $\\sqrt{242}$.", "\\sqrt{242}", "11\\sqrt2"),
        ("Expand $(x+1)(x-2)$.", "y = \\left(x+1\\right)(x-2)", "x^2-x-2"),
        ("Find $\\arcsin \\left( -\\frac{1}{2} \\right)$", "\\arcsin(-\\frac{1}{2})", "-\\frac{\\pi}{6}"),
    ],
)
def test_a_question_does_not_answer_itself(asked: str, said: str, truth: str, math: Scorer) -> None:
    made = attempt(f"\\boxed{{{said}}}", truth)
    made.task.prompt[0]["content"] = asked
    assert score(math, made) == [0.0]


@pytest.mark.parametrize(
    ("said", "truth"),
    [
        ("\\gcd(12, 18)", "6"),
        ("\\operatorname{lcm}(2, 3)", "6"),
        ("\\max(5, 6)", "6"),
        ("\\binom{4}{2}", "6"),
        ("12 \\div 2", "6"),
        ("\\begin{vmatrix} 6 & 0 \\\\ 0 & 1 \\end{vmatrix}", "6"),
        ("e^{\\ln 6}", "6"),
        ("\\sqrt{6^2 + 9^2}", "3\\sqrt{13}"),
        ("\\frac{\\pi}{12} + \\frac{\\pi}{12}", "\\frac{\\pi}{6}"),
        ("\\arcsin(\\frac12)", "\\frac{\\pi}{6}"),
        ("6(1+2i) - 3i", "6+9i"),
        ("(2 + 1, 4 + 1)", "(3, 5)"),
        ("6 + x - x", "6"),
        ("1 - 4x - 81 + 19x", "15x - 80"),
        ("y = 2x + 1 + 2", "y = 2x + 3"),
    ],
)
def test_the_work_that_leads_to_an_answer_is_not_the_answer(said: str, truth: str, math: Scorer) -> None:
    assert score(math, attempt(f"\\boxed{{{said}}}", truth), attempt(f"It is ${said}$.", truth)) == [0.0, 0.0]


@pytest.mark.parametrize(
    ("said", "truth"),
    [
        ("9i + 6", "6+9i"),
        ("\\frac{\\sqrt2}{4} + \\frac{\\sqrt6}{4}", "\\frac{\\sqrt6 + \\sqrt2}{4}"),
        ("2(2 - \\sqrt3)", "4 - 2\\sqrt3"),
        ("\\binom{10}{3}", "\\binom{10}{3}"),
        ("-\\ln \\frac12", "\\ln 2"),
    ],
)
def test_a_number_has_several_forms(said: str, truth: str, math: Scorer) -> None:
    assert score(math, attempt(f"\\boxed{{{said}}}", truth)) == [1.0]


@pytest.mark.parametrize(
    ("asked", "said", "truth"),
    [
        ("Factor the expression $ab+5b+2a+10$.", "0 + (ab+5b+2a+10)", "(a+5)(b+2)"),
        ("Factor the expression $ab+5b+2a+10$.", "\\frac{ab+5b+2a+10}{1}", "(a+5)(b+2)"),
        ("Write $\\frac{3}{20}$ as a decimal.", "\\dfrac{3}{20}", "0.15"),
        ("Simplify $\\frac{84}{144}$.", "1 \\cdot (\\frac{84}{144})", "\\frac{7}{12}"),
        ("Expand \\[(x+1)(x-2).\\]", "-(-(x+1)(x-2))", "x^2-x-2"),
    ],
)
def test_a_question_is_no_answer_in_other_clothes(asked: str, said: str, truth: str, math: Scorer) -> None:
    made = [
        attempt(text, truth) for text in (f"\\boxed{{{said}}}", f"It is ${said}$.", f"\\boxed{{{truth}}}")
    ]
    for one in made:
        one.task.prompt[0]["content"] = asked
    assert score(math, *made) == [0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("asked", "said", "truth"),
    [
        ("Which is larger, $\\frac{1}{2}$ or $\\frac{1}{3}$?", "\\frac{1}{2}", "0.5"),
        ("Is it $(x+1)^2$ or $(x-1)^2$?", "\\left(x + 1\\right)^2", "(x+1)^2"),
        ("Is it $x^2+1$ or $x^2-1$?", "y = x^2+1", "x^2 + 1"),
        ("Which of (1,2) and (2,3)?", "(1, 2)", "\\left( 1,2 \\right)"),
        ("Is it 5 cm or 7 cm?", "5\\text{ cm}", "5"),
    ],
)
def test_an_answer_may_stand_in_the_question(asked: str, said: str, truth: str, math: Scorer) -> None:
    made = attempt(f"\\boxed{{{said}}}", truth)
    made.task.prompt[0]["content"] = asked
    assert score(math, made) == [1.0]


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
