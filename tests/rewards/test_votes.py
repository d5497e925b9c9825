"""What an attempt votes for."""

from __future__ import annotations

import pytest

from toolwright.rewards.votes import can_vote, vote_of


@pytest.mark.parametrize(
    ("text", "truth", "vote"),
    [
        ("So it is\n#### 1,200", "1200", "1200"),
        ("the answer is $1200.00.", "1200", "1200"),
        (r"thus \boxed{1200}", "1200", "1200"),
        ("<answer>1200</answer>", "7", "1200"),
        (r"\boxed{\dfrac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", "x", r"(3,\frac{\pi}{2})"),
        (r"\boxed{50\%}", "50", "50"),
        ("<answer>The Beatles</answer>", ["Beatles"], "thebeatles"),
        ("The Beatles.", ["Beatles"], "beatles"),
        ("no number", "12", None),
        ("", "words", None),
        ("<answer> </answer>", "words", None),
        ("-3", -3, "-3"),
    ],
)
def test_equal_answers_are_equal_votes(text: str, truth: object, vote: str | None) -> None:
    assert vote_of(text, truth) == vote


def test_programs_and_walks_cannot_vote() -> None:
    assert can_vote("12")
    assert can_vote(12)
    assert can_vote({"target": ["a", "b"]})
    assert not can_vote({"tests": ["assert f(1)"], "setup": ""})
    assert not can_vote(None)
    assert not can_vote([{"input": "", "output": ""}])


def test_a_hostile_text_takes_no_time() -> None:
    for text in (r"\boxed{" * 100_000, "<answer>" * 100_000, "1," * 200_000, "\\left" * 100_000):
        vote_of(text, "12")
