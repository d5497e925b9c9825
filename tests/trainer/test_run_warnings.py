"""Warnings of a run that may not learn: all attempts earn the same, or have no tokens left; and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.trainer.run_warnings import EntropyCollapse, NoToolCalls, OutOfTokens, SameRewards
from toolwright.trainer.sampling import SampledStep
from toolwright.trajectory import Failure, Segment, Task, Trajectory

from . import runs


def attempt(reward: float | None = 0.0, **known: object) -> Trajectory:
    return Trajectory(Task("t", []), "g", reward=reward, **known)  # type: ignore[arg-type]


def warned(*steps: SampledStep, config: tuple[str, ...] = ()) -> list[str | None]:
    sameness = SameRewards(runs.configured("train.steps=100", "model.path=some/folder", *config))
    return [sameness.check(step) for step in steps]


def step(*rewards: float, greedy: tuple[float, ...] = ()) -> SampledStep:
    return SampledStep(attempts=[attempt(r) for r in rewards], greedy=[attempt(r) for r in greedy])


def test_same_rewards_are_warned_of_after_three_steps_then_after_twice_as_many() -> None:
    told = warned(*[step(0, 0)] * 13)
    assert [number for number, text in enumerate(told, 1) if text] == [3, 6, 12]
    assert told[2] == "all 6 attempts so far earned 0: there is nothing to learn from"
    assert (told[11] or "").startswith("all 24 attempts so far earned 0: ")


def test_same_rewards_are_not_warned_of_once_two_differ() -> None:
    assert warned(step(0, 0), step(0, 1), *[step(0, 0)] * 20) == [None] * 22
    assert warned(step(0, 0), step(1, 1), *[step(0, 0)] * 20) == [None] * 22, "from one task to another"
    assert warned(*[step(0, 0, greedy=(1,))] * 20) == [None] * 20, "from what they are compared with"


def test_steps_that_earn_differently_are_something_to_learn_from() -> None:
    by_step = [Segment("policy", [1], [0.0], reward=reward) for reward in (0.0, 1.0)]
    assert warned(*[SampledStep(attempts=[attempt(1.0, segments=by_step)])] * 3) == [None] * 3


def test_failed_attempts_earned_nothing_and_not_zero() -> None:
    lost = attempt(None, failure=Failure("task", "it hung"))
    assert warned(*[SampledStep(attempts=[lost])] * 4) == [None] * 4
    assert warned(*[SampledStep(attempts=[lost, attempt(0.5)])] * 3)[-1] == (
        "all 3 attempts so far earned 0.5: there is nothing to learn from"
    )


@pytest.mark.parametrize(
    ("known", "config", "why"),
    [
        (
            {"stop": "length"},
            ["rollout.max_tokens=7"],
            "2 of the last 2 were cut off by rollout.max_tokens=7",
        ),
        (
            {"stop": "tokens"},
            ["rollout.max_total_tokens=99"],
            "were cut off by model.context=32, which can be raised",
        ),
        ({"stop": "tokens"}, ["rollout.max_total_tokens=9"], "cut off by rollout.max_total_tokens=9, which"),
        ({"stop": "eos"}, ["+tools.calculator={}"], "none of the last 2 called a tool: rollout.tool_prompt"),
        ({"counts": {"tool_calls": 2, "tool_errors": 1}}, ["+tools.calculator={}"], "2 of their last 4 tool"),
    ],
)
def test_the_warning_says_what_is_wrong_with_most_attempts(
    known: dict[str, object], config: list[str], why: str
) -> None:
    same = SampledStep(attempts=[attempt(**known) for _ in "ab"])  # type: ignore[arg-type]
    assert why in (warned(same, same, same, config=(*config,))[-1] or "")


def test_attempts_without_tokens_are_reported_once_though_they_earn_differently() -> None:
    warning = OutOfTokens(runs.configured("model.context=32"))
    some = [attempt(0.0, stop="tokens"), attempt(1.0, stop="eos"), attempt(1.0, stop="length")]
    assert warning.check(SampledStep(attempts=some)) is None, "they are few"
    assert (
        warning.check(SampledStep(attempts=[attempt(None, stop="", failure=Failure("task", "hung"))])) is None
    )
    assert warning.check(SampledStep(attempts=some[:2])) == (
        "1 of 2 attempts had no tokens left: prompt and answers fill model.context=32"
    )
    assert warning.check(SampledStep(attempts=some[:2])) is None, "once is enough"


def calling(calls: float, *, unknown: float = 0.0) -> SampledStep:
    counts = {"tool_calls": calls, "tool_calls/unknown": unknown} if calls else {}
    return SampledStep(attempts=[attempt(counts=counts), attempt()])


class TestToolCalls:
    def told(
        self, *steps: SampledStep, tools: tuple[str, ...] = ("+tools.calculator={}",)
    ) -> list[str | None]:
        warning = NoToolCalls(runs.configured(*tools))
        return [warning.check(step) for step in steps]

    def test_are_missed_after_five_steps_without_one_then_after_twice_as_many(self) -> None:
        told = self.told(calling(1), *[calling(0)] * 11)
        assert [number for number, text in enumerate(told) if text] == [5, 10]
        text = told[5] or ""
        assert text.startswith(
            "no attempt has called a tool for 5 steps (0.083 calls an attempt in all); a cold"
        )
        assert "toolwright sft demonstrations=sampled" in text

    def test_the_warning_tells_of_calls_to_tools_that_do_not_exist(self) -> None:
        told = self.told(calling(3, unknown=2), *[calling(0)] * 5)[-1] or ""
        assert "67% of those of tools that do not exist" in told

    def test_that_come_back_are_not_missed(self) -> None:
        steps = [*[calling(0)] * 4, calling(1)] * 3
        assert self.told(*steps) == [None] * 15

    def test_that_never_were_are_missed_too(self) -> None:
        assert "for 5 steps, nor any before" in (self.told(*[calling(0)] * 5)[-1] or "")

    def test_are_not_missed_where_there_is_no_tool(self) -> None:
        assert self.told(*[calling(0)] * 9, tools=()) == [None] * 9


class TestEntropy:
    def told(self, *rows: tuple[float, float]) -> list[str | None]:
        warning = EntropyCollapse()
        return [
            warning.check({"policy/entropy": entropy, "reward/mean": reward, "reward/max": 1.0})
            for entropy, reward in rows
        ]

    def test_entropy_that_is_gone_for_five_steps_is_reported_once(self) -> None:
        told = self.told(*[(0.5, 0.3)] * 4, *[(0.01, 0.3)] * 9)
        assert [number for number, text in enumerate(told) if text] == [8]
        assert (told[8] or "").startswith(
            "entropy has fallen from 0.5 to 0.01 nats a token, with a reward of 0.3"
        )
        assert "update.policy.lr" in (told[8] or "")

    def test_low_entropy_of_a_policy_that_is_right_is_not_warned_of(self) -> None:
        assert self.told(*[(0.5, 0.3)] * 4, *[(0.01, 0.97)] * 9) == [None] * 13

    def test_that_was_low_from_the_start_is_not_told(self) -> None:
        assert self.told(*[(0.015, 0.3)] * 20) == [None] * 20

    def test_is_not_asked_for_where_nothing_was_learned(self) -> None:
        assert EntropyCollapse().check({"held_out/accuracy": 0.5}) is None


def test_a_run_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One of a single step, too; and attempts that ran out of all their tokens count as cut off."""
    nothing = tmp_path / "nothing.py"
    nothing.write_text("def score(solution_str, **_):\n    return 0.0\n")
    own = (f"reward.function={nothing}:score", "train.steps=1", "rollout.max_total_tokens=6")
    run = runs.trained(tmp_path, *own)
    said = (
        "step 1: all 16 attempts so far earned 0: there is nothing to learn from; from random weights a "
        "right answer is luck, and more of it with a warm start: toolwright sft, then "
        f"model.path=runs/NAME/model; toolwright view {run} shows them"
    )
    cut = sum(t.stop == "tokens" for t in runs.rollouts(run)[1])
    assert cut > 8
    filled = f"step 1: {cut} of 16 attempts had no tokens left: prompt and answers fill rollout.max_total_"
    log, out = (run / "log.txt").read_text(), capsys.readouterr().out
    assert all(line in text for line in (said, filled) for text in (log, out))
    assert "all attempts earned 0: there was nothing to learn from" in (run / "report.html").read_text()
    assert runs.metrics(run)[-1]["response/truncated"] == cut / 16
