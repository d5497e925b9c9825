"""The loop that plays an environment: what it records, what ends it, and who is blamed for what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from toolwright.agents.environment import read_action
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tasks import InvalidAction
from toolwright.trajectory import Task, Trajectory

WORLDS = Path(__file__).with_name("worlds.py")
MODEL = tiny.decoder(context=128)


def run(
    name: str, *, count: int = 1, rollout: dict[str, Any] | None = None, **settings: Any
) -> list[Trajectory]:
    """Attempts at one task in an environment of this folder's `worlds.py`, or a built-in one."""
    tokenizer = tiny.characters()
    engine = NativeEngine(
        schema.EngineConfig(slots=8), decoder=MODEL, tokenizer=tokenizer, dtype=torch.float32
    )
    config = schema.RolloutConfig(**{"max_tokens": 2, "retries": 0, "max_turns": 5, **(rollout or {})})
    where = f"{WORLDS}:{name}" if name[0].isupper() else name
    task = Task(
        "t", [{"role": "system", "content": ""}], extra_info={"environment": {"name": where, **settings}}
    )
    wanted = [AttemptRequest(task, "g", number, seed=number) for number in range(count)]
    return asyncio.run(Rollout(config, engine, tokenizer).run(wanted))


def failure(name: str, **settings: Any) -> str:
    (trajectory,) = run(name, **settings)
    assert trajectory.failure is not None
    assert trajectory.failure.kind == "task"
    return trajectory.failure.message


class TestWhatIsRecorded:
    def test_steps_have_the_reward_they_earned_and_the_state_they_were_taken_in(self) -> None:
        trajectory = next(t for t in run("Counter", count=8) if not t.counts.get("format_faults"))
        assert [step.reward for step in trajectory.steps] == [1, 2, 3]
        assert [step.anchor for step in trajectory.steps] == ["0", "1", "2"]
        assert trajectory.stop == "done"
        assert trajectory.counts == {"success": 1}

    def test_observations_are_the_users_turns_and_the_last_is_only_read(self) -> None:
        trajectory = next(t for t in run("Counter", count=8) if not t.counts.get("format_faults"))
        sources = [segment.source for segment in trajectory.segments]
        assert sources == [
            "prompt",
            "policy",
            "environment",
            "policy",
            "environment",
            "policy",
            "environment",
        ]
        shown = trajectory.segments[2]
        assert "<|user|>1<|end|><|assistant|>" in tiny.characters().backend.decode(
            shown.tokens, skip_special_tokens=False
        )
        assert trajectory.segments[-1].tokens == []
        assert trajectory.segments[-1].text == "3"

    def test_a_level_in_which_nothing_is_reached_ends_by_turns(self) -> None:
        (trajectory,) = run("Counter", upto=100)
        assert (trajectory.stop, len(trajectory.steps)) == ("turns", 5)
        assert trajectory.counts["success"] == 0

    def test_a_sum_of_rewards_is_a_success_where_the_task_says_so(self) -> None:
        """Three steps give 1, 2 and 3."""
        for enough, success in ((6.0, 1), (6.5, 0)):
            (trajectory,) = run("Counter", success_reward=enough)
            assert (trajectory.stop, trajectory.counts["success"]) == ("done", success)
        (unended,) = run("Counter", upto=100, success_reward=1.0)
        assert unended.counts["success"] == 0

    def test_a_context_that_is_full_ends_it_by_tokens(self) -> None:
        (trajectory,) = run("Counter", upto=1000, rollout={"max_turns": 1000})
        assert trajectory.failure is None
        assert trajectory.stop == "tokens"
        assert 100 < len(trajectory.tokens) <= 128
        assert trajectory.segments[-1].text == str(len(trajectory.steps))

    def test_the_same_seed_plays_the_same(self) -> None:
        first, again = run("Counter", count=4), run("Counter", count=4)
        assert [t.tokens for t in first] == [t.tokens for t in again]
        assert len({tuple(t.tokens) for t in first}) > 1

    def test_the_sum_of_steps_is_the_reward_and_success_the_accuracy(self) -> None:
        attempts = run("Counter", count=4)
        asyncio.run(Scorer(schema.Reward(), default="environment").score(attempts))
        for attempt in attempts:
            assert attempt.reward == sum(step.reward or 0 for step in attempt.steps)
            assert attempt.reward_parts["acc"] == attempt.counts["success"]


class TestInvalidActions:
    def test_cost_the_penalty_that_the_task_has(self) -> None:
        everything = tiny.characters().backend.get_vocab()
        refused = "".join(token for token in everything if len(token) == 1)
        attempts = run("Counter", refuses=refused, invalid_penalty=0.25, count=8)
        faults = [attempt.counts.get("format_faults", 0) for attempt in attempts]
        assert sum(faults) > 0
        told = [[step.reward for step in attempt.steps].count(-0.75) for attempt in attempts]
        assert told == faults

    def test_are_told_counted_and_change_nothing(self) -> None:
        level = "#####\n#@.*#\n#####"
        for trajectory in run("gridworld", count=4, level=level, view="signs"):
            assert trajectory.failure is None
            faults = [
                s for s in trajectory.segments if s.source == "environment" and "say u, d, l, r" in s.text
            ]
            assert trajectory.counts["format_faults"] == len(faults) > 0
            assert trajectory.steps[0].anchor == trajectory.steps[1].anchor == "1,1 "

    def test_cost_what_the_environment_says(self) -> None:
        steps = [step for t in run("Counter", count=8, upto=100, refuses="02468+= b") for step in t.steps]
        refused = {step.reward for step in steps if set(step.text.strip()) & set("02468+= b")}
        assert refused == {-0.5}
        assert all((step.reward or 0) > 0 for step in steps if not set(step.text.strip()) & set("02468+= b"))

    def test_an_action_without_its_tags_is_answered_with_how_to_write_them(self) -> None:
        (trajectory,) = run("Counter", action_tag="action", rollout={"max_turns": 2})
        assert trajectory.counts["format_faults"] == 2
        assert "Write your action as <action>" in trajectory.segments[2].text


class TestTextOfAnySize:
    """Bounded before it is encoded, which takes a hundred times its memory, or kept."""

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ({"first": True}, "reset returned 50,000,000 characters of text"),
            ({}, "step returned 50,000,000 characters of text"),
            ({"anchor": True}, "step returned 50,000,000 characters of anchor"),
        ],
    )
    def test_is_refused_and_named_where_no_policy_could_read_it(
        self, what: dict[str, Any], said: str
    ) -> None:
        message = failure("Talkative", size=50_000_000, **what)
        assert said in message
        assert message.endswith("at most 1,048,576 are allowed")

    @pytest.mark.parametrize("refuses", [False, True])
    def test_ends_the_attempt_by_tokens_where_the_context_is_too_small_for_it(self, refuses: bool) -> None:
        (trajectory,) = run("Talkative", size=1_000_000, refuses=refuses)
        assert (trajectory.failure, trajectory.stop) == (None, "tokens")
        assert len(trajectory.steps) == 1
        assert len(trajectory.segments[-1].text) == 1_000_000

    def test_the_observation_after_an_invalid_action_is_cut(self) -> None:
        (trajectory,) = run("Talkative", size=50_000_000, refuses=True)
        assert len(trajectory.segments[-1].text) == 1 << 20

    def test_a_first_observation_that_leaves_no_room_for_an_answer(self) -> None:
        said = failure("Talkative", size=1_000_000, first=True)
        assert "a prompt of 1,000,000 characters leaves no room in the 128 tokens" in said


@pytest.mark.parametrize(
    ("text", "tag", "action"),
    [
        (" up \n", None, "up"),
        ("<think>left?</think>up", None, "up"),
        ("I go <action>up</action>.", "action", "up"),
        ("<action>up</action><action> down </action>", "action", "down"),
        ("<action><action>up</action>", "action", "up"),
        ("<think><action>up</action></think><action>down</action>", "action", "down"),
        ("<act.ion>up</act.ion>", "act.ion", "up"),
        ("<action>a\nb</action>", "action", "a\nb"),
    ],
)
def test_the_last_tagged_action_counts(text: str, tag: str | None, action: str) -> None:
    assert read_action(text, tag) == action


@pytest.mark.parametrize(
    "text", ["up", "<action>up", "up</action>", "<think><action>up</action>", "<actxion>up</actxion>"]
)
def test_text_outside_the_tags_is_no_action(text: str) -> None:
    with pytest.raises(InvalidAction, match="<action>"):
        read_action(text, "action")


class TestWhoIsBlamed:
    @pytest.mark.parametrize("where", ["build", "reset", "step"])
    def test_an_environment_that_raises_fails_its_attempt_with_the_traceback(self, where: str) -> None:
        message = failure("Trouble", where=where, what="raise")
        assert "KeyError: 'the level is lost'" in message
        assert "worlds.py" in message
        assert "Trouble" in message

    @pytest.mark.parametrize("what", ["exit", "stop"])
    def test_what_would_end_a_process_or_a_loop_is_a_failure_as_well(self, what: str) -> None:
        assert "was raised" in failure("Trouble", where="step", what=what)

    @pytest.mark.parametrize("where", ["build", "reset", "step"])
    def test_one_that_hangs_costs_one_limit_which_is_named(self, where: str) -> None:
        started = time.perf_counter()
        attempts = run("Trouble", count=8, where=where, what="hang", rollout={"environment_timeout_s": 1.5})
        assert time.perf_counter() - started < 8 * 1.5, "eight of them side by side"
        for attempt in attempts:
            assert attempt.failure is not None
            assert "Trouble' did not answer" in attempt.failure.message
            assert "rollout.environment_timeout_s=1.5" in attempt.failure.message

    def test_an_async_one_that_hangs_is_cancelled_and_closed(self) -> None:
        (trajectory,) = run("Sleepy", rollout={"environment_timeout_s": 1.5})
        assert trajectory.failure is not None
        assert "did not answer step" in trajectory.failure.message

    def test_one_that_cannot_be_closed_has_been_played_all_the_same(self) -> None:
        (trajectory,) = run("Trouble", where="close", what="raise")
        assert trajectory.failure is None
        assert trajectory.stop == "done"

    @pytest.mark.parametrize(
        ("what", "why"),
        [
            ("none", "must return a toolwright.tasks.Outcome"),
            ("nan", "the reward nan"),
            ("text", "Outcome"),
        ],
    )
    def test_an_answer_that_is_none_is_reported(self, what: str, why: str) -> None:
        assert why in failure("Trouble", where="", what=what)

    def test_a_number_of_numpy_is_a_reward(self) -> None:
        (trajectory,) = run("Trouble", where="", what="numpy")
        assert trajectory.failure is None
        assert [step.reward for step in trajectory.steps] == [0.5]
        assert type(trajectory.steps[0].reward) is float

    @pytest.mark.parametrize(
        ("name", "settings", "why"),
        [
            ("gridwrld", {}, "unknown environment 'gridwrld'; known: .*gridworld"),
            ("gridworld", {"levle": "@*"}, "has no setting levle; did you mean 'level'"),
            ("gridworld", {}, "needs the setting level"),
            ("gridworld", {"level": "@"}, "needs one @ and a goal"),
            ("sokoban", {"level": "@$"}, "as many boxes"),
        ],
    )
    def test_settings_that_cannot_work_stop_the_run(
        self, name: str, settings: dict[str, Any], why: str
    ) -> None:
        with pytest.raises(UserError, match=why):
            run(name, **settings)

    def test_plain_methods_have_one_thread_for_all_of_an_attempt(self) -> None:
        for trajectory in run("Threaded", count=3):
            assert trajectory.failure is None
            assert trajectory.counts["success"] == 1


def test_environments_import_without_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys, toolwright.tasks, toolwright.tasks.environment_host\n"
        "toolwright.tasks.ENVIRONMENTS.names()\n"
        "sys.exit('torch' in sys.modules or 'gymnasium' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
