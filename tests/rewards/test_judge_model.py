"""A language model from a folder as judge: its word counts if a rule finds a number in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.rewards.attempts import attempt
from tests.rewards.scorers_of_models import always_says
from toolwright.config import schema
from toolwright.failures import TaskFailure, UserError
from toolwright.rewards import Scorer
from toolwright.rewards.builtin.judge_model import JudgeModel
from toolwright.rewards.item import of_attempt
from toolwright.rewards.judgement import Judgement

REPLIES = {
    "score": ("At first Score: 3, no: Score: **7**", 0.7),
    "boxed": (r"so \boxed{7}", 0.7),
    "tag": ("<score> 7 </score>", 0.7),
    "number": ("of 10 it is 7.0", 0.7),
    "yes_no": ("No? Yes", 1.0),
}


def judgement(**changes: Any) -> Judgement:
    settings: dict[str, Any] = {"template": "", "rule": "score", "pattern": None, "most": 10.0}
    return Judgement(**{**settings, "where": "reward.params.judge", **changes})


@pytest.mark.parametrize("rule", REPLIES)
def test_each_rule_finds_the_last_number(rule: str) -> None:
    reply, score = REPLIES[rule]
    assert judgement(rule=rule).score(reply, "the judge") == score
    with pytest.raises(TaskFailure, match=f"gave no score by rule '{rule}'"):
        judgement(rule=rule).score("I cannot say", "the judge")


def test_a_number_out_of_range_is_no_score() -> None:
    for reply in ("Score: 11", "Score: -1"):
        with pytest.raises(TaskFailure, match="not 0 to 10"):
            judgement().score(reply, "the judge")
    with pytest.raises(TaskFailure, match="which is not a number"):
        judgement(pattern="mark (.)").score("mark A", "the judge")


def test_a_template_may_show_the_whole_conversation() -> None:
    asked = judgement(template="{conversation} of {most}").question(of_attempt(attempt("{truth}")))
    assert asked == "[user]\nWhat?\n\n[assistant]\n{truth} of 10"


def test_a_judge_says_the_number(tmp_path: Path) -> None:
    params = {"judge_model": {"path": str(always_says(tmp_path, "Score: 7")), "max_tokens": 32}}
    made = Scorer(schema.Reward(function="judge_model", params=params), default="exact")
    try:
        attempts = [attempt("yes", "yes"), attempt("no" * 2000, "yes")]
        asyncio.run(made.score(attempts))
        assert [(t.reward, t.reward_parts, t.failure) for t in attempts] == [
            (0.7, {"cut": 0.0}, None),
            (0.7, {"cut": 1.0}, None),
        ]
    finally:
        made.close()


def test_a_reply_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    model = JudgeModel(path=str(always_says(tmp_path, "Nothing")), max_tokens=32)
    (found,) = model([""], [[]], [[]], [None])
    assert isinstance(found, TaskFailure)
    assert "it said: 'Not" in str(found)


def test_a_judge_needs_room_to_answer(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set a smaller max_tokens"):
        JudgeModel(path=str(always_says(tmp_path, "yes")), max_tokens=4096)
