"""A reward for a call that helped: once, for a right answer that the tool was the first to say."""

from __future__ import annotations

from typing import Any

import pytest

from tests.rewards.attempts import said, score, scorer
from toolwright.failures import UserError
from toolwright.trajectory import Segment, Task, Trajectory

QUESTION = "How much is 6 times 7?"
PARTS = {"task": 1.0, "tool_helped": 0.1}


def result(text: str, trouble: str = "") -> Segment:
    return Segment("tool", [3], text=text, calls=[{"name": "python", "trouble": trouble}])


def attempt(*segments: Segment, truth: Any = "42", source: str = "gsm8k") -> Trajectory:
    prompt = [{"role": "user", "content": QUESTION}]
    return Trajectory(Task("t", prompt, truth, source), "g", segments=[Segment("prompt", [1]), *segments])


def earned(*segments: Segment, truth: Any = "42", source: str = "gsm8k") -> float | None:
    (reward,) = score(scorer(source, parts=PARTS), attempt(*segments, truth=truth, source=source))
    return reward


ASKED = said("<tool>print(6*7)</tool>")


def test_a_result_that_the_answer_was_read_from_earns_a_little_more() -> None:
    assert earned(ASKED, result("42"), said("#### 42")) == pytest.approx(1.1)
    assert earned(said("#### 42")) == 1.0


@pytest.mark.parametrize(
    "segments",
    [
        (ASKED, result("42"), said("#### 41")),  # helped, and wrong all the same
        (ASKED, result("42"), said("41, 42, 43")),  # every number near it
    ],
)
def test_a_wrong_answer_earns_nothing(segments: tuple[Segment, ...]) -> None:
    assert earned(*segments) == 0.0


@pytest.mark.parametrize(
    "segments",
    [
        (said("It is 42. <tool>print(6*7)</tool>"), result("42")),  # computed in the head
        (said("<tool>print(42)</tool>"), result("42")),  # written into the call
        (ASKED, result("42", trouble="raised")),
        (ASKED, result("7")),
        (said("<tool>print(1)</tool>"), result("1"), said("so 42 <tool>print(6*7)</tool>"), result("42")),
    ],
)
def test_a_call_for_the_sake_of_calling_earns_nothing_more(segments: tuple[Segment, ...]) -> None:
    assert earned(*segments, said("#### 42")) == 1.0


def test_a_second_call_earns_nothing_more() -> None:
    once = (ASKED, result("42"))
    assert earned(*once, *once, said("#### 42")) == earned(*once, said("#### 42"))


def test_what_the_question_says_no_tool_has_found() -> None:
    assert earned(said("<tool>print(3+3)</tool>"), result("6"), said("#### 6"), truth="6") == 1.0


def test_numbers_are_compared_as_numbers() -> None:
    asked = said("<tool>print(1000*1.25)</tool>")
    assert earned(asked, result("1250.0"), said("#### 1,250"), truth="1250") == pytest.approx(1.1)
    assert earned(asked, result("12500"), said("#### 1,250"), truth="1250") == 1.0


def test_answers_in_words_are_found_as_words() -> None:
    found = (said("<search>capital</search>"), result("The capital of France is Paris."))
    answer = said("<answer>Paris</answer>")
    assert earned(*found, answer, truth=["Paris", "City of Paris"], source="em") == pytest.approx(1.1)
    assert earned(*found, answer, truth={"target": ["Paris"]}, source="em") == pytest.approx(1.1)
    other = result("Parisians live there.")
    assert earned(found[0], other, answer, truth=["Paris"], source="em") == 1.0


def test_alone_it_says_nothing_and_is_refused() -> None:
    with pytest.raises(UserError, match="does not say whether an answer is right"):
        scorer("gsm8k", function="tool_helped")
