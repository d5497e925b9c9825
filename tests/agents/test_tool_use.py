"""The tool-use loop: turns, calls side by side, limits that end an attempt, failures that are none."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from toolwright.agents.auto import choice
from toolwright.failures import UserError
from toolwright.models.tokenizer import Tokenizer
from toolwright.record import load, save
from toolwright.registry import load_object
from toolwright.trajectory import Task

from .attempts import FILE, is_the_engines_stream, rollout_of, run, tags, texts
from .scripted import saying
from .templates import tokenizer


class TestTurns:
    def test_an_answer_goes_on_in_the_policys_turn(self) -> None:
        trajectory = tags("see <echo>42</echo>", "it is 42<|im_end|>")
        assert [(s.source, s.text) for s in trajectory.segments[1:]] == [
            ("policy", "see <echo>42</echo>"),
            ("tool", "<result>42</result>"),
            ("policy", "it is 42"),
        ]
        assert trajectory.stop == "eos"
        assert trajectory.counts == {
            "tool_calls": 1,
            "tool_calls/echo": 1,
            "tool_errors": 0,
            "tool_timeouts": 0,
        }
        assert trajectory.timings["tool_s"] >= 0
        assert trajectory.timings["generate_s"] > 0

    def test_a_tool_result_is_a_message_if_the_format_says_so(self) -> None:
        made = tokenizer("qwen3")
        call = '<tool_call>{"name": "echo", "arguments": {"text": "42"}}</tool_call>'
        rollout = rollout_of(made, saying(made, call + "<|im_end|>", "it is 42<|im_end|>"), tool_prompt=None)
        (trajectory,) = run(rollout)
        assert '"name": "echo"' in trajectory.segments[0].text, "the template tells of the tools"
        assert texts(trajectory, "tool") == [
            "\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
        ]
        is_the_engines_stream(trajectory, rollout)

    def test_calls_are_kept_for_readers_and_come_back_from_a_file(self, tmp_path: Path) -> None:
        trajectory = tags("<echo>42</echo>", "<broken>x</broken>", "so<|im_end|>")
        records = [record for s in trajectory.segments for record in s.calls]
        assert [(r["name"], json.loads(r["arguments"]), r["trouble"]) for r in records] == [
            ("echo", {"text": "42"}, ""),
            ("broken", {"text": "x"}, "raised"),
        ]
        save(tmp_path / "a.parquet", [trajectory])
        assert load(tmp_path / "a.parquet") == [trajectory]

    def test_a_tool_may_reward_the_step_that_called_it(self) -> None:
        calls = ("<prize>right</prize>", "<prize>other</prize>", "<prize>numpy</prize>", "so<|im_end|>")
        trajectory = tags(*calls)
        assert texts(trajectory, "tool")[0] == "<result>you said right</result>"
        assert [step.reward for step in trajectory.steps] == [0.5, None, 0.75, None]

    def test_a_step_is_taken_in_the_state_that_the_last_answer_names(self) -> None:
        trajectory = tags("<echo>42</echo>", "<echo>7</echo>", "so<|im_end|>")
        assert [step.anchor for step in trajectory.steps] == ["", "42", "7"]

    def test_calls_of_one_turn_earn_their_sum(self) -> None:
        made = tokenizer("qwen3")
        call = '<tool_call>{"name": "prize", "arguments": {"text": "%s"}}</tool_call>'
        turns = (call % "right" + call % "wrong" + "<|im_end|>", "so<|im_end|>")
        (trajectory,) = run(rollout_of(made, saying(made, *turns)))
        assert [step.reward for step in trajectory.steps] == [0.25, None]

    def test_a_reward_that_is_no_number_fails_the_task_and_is_not_one(self) -> None:
        made = tokenizer("chatml")
        (trajectory,) = run(rollout_of(made, saying(made, "<prize>endless</prize>"), call_format="tags"))
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "task"
        assert "tool 'prize' gave the reward inf" in trajectory.failure.message

    def test_the_policy_is_told_how_to_call_where_the_template_does_not_say(self) -> None:
        made = tokenizer("chatml")
        (trajectory,) = run(rollout_of(made, saying(made, "<|im_end|>"), tool_prompt=None, tools=["echo"]))
        assert "<|im_start|>system\nYou can use these tools:\n- echo(text: string): Says it again." in (
            trajectory.segments[0].text
        )

    def test_tools_are_described_by_the_user_if_the_template_has_no_system(self) -> None:
        made = tokenizer("gemma")
        (trajectory,) = run(rollout_of(made, saying(made, "<end_of_turn>"), tool_prompt=None, tools=["echo"]))
        assert trajectory.segments[0].text.startswith("<bos><start_of_turn>user\nYou can use these tools")

    def test_a_call_in_a_thought_is_not_run_and_the_thought_goes_on(self) -> None:
        trajectory = tags(
            "<think><echo>1</echo>", "or <echo>2</echo>", "</think><echo>3</echo>", "3<|im_end|>"
        )
        assert [s.source for s in trajectory.segments] == ["prompt", *["policy"] * 3, "tool", "policy"]
        assert texts(trajectory, "tool") == ["<result>3</result>"]
        assert trajectory.counts["tool_calls"] == 1

    def test_a_template_may_open_the_thought_itself(self) -> None:
        config = {**tokenizer("chatml").config}
        config["chat_template"] = config["chat_template"].replace(
            "assistant\n{% endif", "assistant\n<think>\n{% endif"
        )
        made = Tokenizer(tokenizer("chatml").backend, config)
        turns = ("<echo>1</echo>", "</think><echo>2</echo>", "2<|im_end|>")
        (trajectory,) = run(rollout_of(made, saying(made, *turns), call_format="tags"))
        assert texts(trajectory, "tool") == ["<result>2</result>"]

    def test_the_users_own_stop_string_ends_the_attempt(self) -> None:
        trajectory = tags("<echo>1</echo>", "so </answer>", stop=["</answer>"])
        assert (trajectory.stop, len(trajectory.steps)) == ("stop", 2)

    def test_what_follows_a_stop_string_in_the_same_token_stays(self) -> None:
        """A token may hold the end of a call and more: it was sampled, so it is there."""
        made = Tokenizer.characters("<>/echo1\n ")
        made.backend.add_tokens(["o>\n"])
        turns = ["<echo>1</echo>\n", "1<|end|>"]
        rollout = rollout_of(made, saying(made, *turns), call_format="tags")
        (trajectory,) = run(rollout)
        assert [s.text for s in trajectory.segments[1:]] == ["<echo>1</echo>\n", "<result>1</result>", "1"]
        is_the_engines_stream(trajectory, rollout)

    def test_a_call_left_open_at_the_end_of_a_turn_is_answered_in_a_message(self) -> None:
        trajectory = tags("<echo>1<|im_end|>", "sorry<|im_end|>")
        assert texts(trajectory, "tool") == [
            "\n<|im_start|>tool\n<echo> is not closed by </echo><|im_end|>\n<|im_start|>assistant\n"
        ]
        assert trajectory.counts == {"format_faults": 1}


class TestFaults:
    def test_are_told_to_the_policy_and_counted(self) -> None:
        trajectory = tags("<add>x</add>", '<add>{"a": "y", "b": 2}</add>', "<broken>1</broken>", "<|im_end|>")
        malformed, arguments, raised = texts(trajectory, "tool")
        assert "takes a JSON object with a, b" in malformed
        assert "a: Input should be a valid integer" in arguments
        assert "no such thing" in raised
        assert trajectory.counts["format_faults"] == 1
        assert trajectory.counts["tool_calls"] == 2
        assert trajectory.counts["tool_errors"] == 2

    def test_an_unknown_tool_has_no_count_of_its_own(self) -> None:
        made = tokenizer("llama3")
        script = saying(made, '{"name": "ech", "parameters": {}}<|eot_id|>', "so<|eot_id|>")
        (trajectory,) = run(rollout_of(made, script))
        assert "there is no tool 'ech'; did you mean 'echo'?" in texts(trajectory, "tool")[0]
        assert trajectory.counts["tool_calls/unknown"] == trajectory.counts["tool_errors"] == 1

    def test_a_task_may_restrict_its_tools(self) -> None:
        made = tokenizer("llama3")
        script = saying(made, '{"name": "echo", "parameters": {"text": "1"}}<|eot_id|>', "so<|eot_id|>")
        (trajectory,) = run(rollout_of(made, script), tools=["add"])
        assert trajectory.counts["tool_calls/unknown"] == 1
        (trajectory,) = run(rollout_of(made, script), tools=["nope"])
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "task"
        assert (
            "offers the tool 'nope', which is not configured; configured: echo" in trajectory.failure.message
        )

    def test_a_dead_tool_server_is_an_infrastructure_failure(self) -> None:
        made = tokenizer("chatml")
        rollout = rollout_of(made, saying(made, "<gone>1</gone>"), call_format="tags", retries=2)
        (trajectory,) = run(rollout)
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "infrastructure"
        assert "http://tools:80" in trajectory.failure.message
        assert len(rollout.engine.seen["g0/0"]) == 3, "tried again"  # type: ignore[attr-defined]

    def test_retries_pause_longer_each_time(self) -> None:
        made = tokenizer("chatml")
        script = saying(made, "<gone>1</gone>")
        rollout = rollout_of(made, script, call_format="tags", retries=2, retry_pause_s=0.5)
        started = time.perf_counter()
        run(rollout, 5)
        assert 1.5 <= time.perf_counter() - started < 7.5, "0.5 and 1 seconds, all five side by side"

    def test_what_an_attempt_holds_is_given_back(self) -> None:
        made = tokenizer("chatml")
        turns = ("<note>a</note>", "<note>b</note>", "<|im_end|>")
        load_object(f"{FILE}:ended").clear()
        rollout = rollout_of(made, saying(made, *turns), call_format="tags", tools=["note"])
        trajectories = run(rollout, 2)
        assert [texts(t, "tool") for t in trajectories] == [
            ["<result>a</result>", "<result>a b</result>"]
        ] * 2
        assert sorted(load_object(f"{FILE}:ended")) == ["g0/0", "g1/0"]


class TestSideBySide:
    def test_calls_of_one_turn(self) -> None:
        made = tokenizer("qwen25")
        call = '<tool_call>{"name": "meet", "arguments": {"count": 4}}</tool_call>'
        script = saying(made, call * 4 + "<|im_end|>", "<|im_end|>")
        load_object(f"{FILE}:met").clear()
        (trajectory,) = run(rollout_of(made, script))
        assert trajectory.counts["tool_calls"] == 4
        assert texts(trajectory, "tool")[0].count("4 have met") == 4
        assert len(trajectory.segments[2].calls) == 4

    def test_more_than_allowed_are_not_run(self) -> None:
        made = tokenizer("qwen25")
        call = '<tool_call>{"name": "echo", "arguments": {"text": "x"}}</tool_call>'
        script = saying(made, call * 5 + "<|im_end|>", "<|im_end|>")
        (trajectory,) = run(rollout_of(made, script, max_calls=2))
        assert trajectory.counts["tool_calls"] == 2
        assert trajectory.counts["calls_refused"] == 3
        assert (
            "at most 2 calls are run in one turn; the 3 after them were not run"
            in texts(trajectory, "tool")[0]
        )

    def test_a_tool_that_hangs_costs_one_timeout_of_one_attempt(self) -> None:
        made = tokenizer("chatml")
        slow, quick = (
            saying(made, "<wait>99</wait>", "<|im_end|>"),
            saying(made, "<wait>0</wait>", "<|im_end|>"),
        )
        rollout = rollout_of(
            made,
            lambda attempt, turn: (slow if attempt == "g1/0" else quick)(attempt, turn),
            call_format="tags",
            tool_timeout_s=2.5,
        )
        trajectories = run(rollout, 4)
        assert [t.counts["tool_timeouts"] for t in trajectories] == [0, 1, 0, 0]
        assert [t.failure for t in trajectories] == [None] * 4
        assert texts(trajectories[1], "tool") == ["<result>wait did not answer within 2.5 s</result>"]
        hung = trajectories.pop(1).timings["attempt_s"]
        assert 2.5 <= hung < 90
        assert max(t.timings["attempt_s"] for t in trajectories) < 2.5


class TestLimits:
    def test_turns(self) -> None:
        trajectory = tags("<echo>1</echo>", max_turns=3)
        assert (trajectory.stop, len(trajectory.steps)) == ("turns", 3)
        assert trajectory.counts["tool_calls"] == 2, "what nobody would read is not run"

    def test_tokens_a_turn(self) -> None:
        trajectory = tags("<echo>" + "1" * 99, max_tokens=20)
        assert (trajectory.stop, trajectory.sampled_tokens) == ("length", 20)
        assert "format_faults" not in trajectory.counts, "cut off by us, not written wrong"

    def test_max_total_tokens_ends_a_turn_of_the_policy(self) -> None:
        trajectory = tags("so " * 99, max_total_tokens=60)
        assert (trajectory.stop, len(trajectory.tokens)) == ("tokens", 60)

    def test_tokens_in_all_where_a_tool_answers(self) -> None:
        trajectory = tags(f"<echo>{'1' * 40}</echo>", max_total_tokens=100)
        assert trajectory.stop == "tokens"
        assert trajectory.segments[-1].source == "policy", "an answer that does not fit is left out"

    def test_tokens_after_the_prompt(self) -> None:
        trajectory = tags("<echo>1</echo>", call_params={"response_tokens": 40})
        assert trajectory.stop == "tokens"
        assert len(trajectory.tokens) - trajectory.prompt_tokens <= 40
        assert len(trajectory.steps) > 1, "turns and tools share them"

    def test_characters_of_an_answer(self) -> None:
        trajectory = tags(
            f"<echo>{'a' * 30}{'z' * 30}</echo>", "<|im_end|>", call_params={"result_characters": 9}
        )
        assert "aaaaa...(truncated)...zzzz" in texts(trajectory, "tool")[0]

    @pytest.mark.parametrize("name", ["response_tokens", "result_characters"])
    def test_a_limit_is_a_positive_number(self, name: str) -> None:
        with pytest.raises(UserError, match=f"rollout.call_params.{name}=0: expected a positive integer"):
            tags("x", call_params={name: 0})

    def test_the_models_context_is_a_limit_too_and_no_failure(self) -> None:
        made = tokenizer("chatml")
        (trajectory,) = run(rollout_of(made, saying(made, "<echo>1</echo>"), call_format="tags", context=120))
        assert trajectory.failure is None
        assert trajectory.stop in ("tokens", "turns")

    def test_a_prompt_that_fills_it_is_the_tasks_fault(self) -> None:
        made = tokenizer("chatml")
        (trajectory,) = run(rollout_of(made, saying(made, "x"), max_total_tokens=5))
        assert trajectory.failure is not None
        assert trajectory.failure.kind == "task"
        assert "leaves no room in the 5 that an attempt may have" in trajectory.failure.message

    def test_tokens_of_an_answer(self) -> None:
        trajectory = tags("<noise>long</noise>", "<|im_end|>", tool_tokens=128)
        (answer,) = texts(trajectory, "tool")
        assert answer.startswith("<result>0123456789")
        assert answer.endswith("0123456789</result>")
        assert "200,000 characters, the middle left out" in answer
        assert len(trajectory.segments[2].tokens) < 160

    def test_seconds_of_an_attempt(self) -> None:
        trajectory = tags("<wait>99</wait>", timeout_s=2.5)
        assert (trajectory.stop, trajectory.failure) == ("time", None)
        assert trajectory.segments[-1].source == "policy"


class TestChoice:
    @pytest.mark.parametrize(
        ("extra", "tools", "expected"),
        [
            ({}, {}, "single_turn"),
            ({}, {"python": {}}, "tool_use"),
            ({}, {"python": {}, "search": {}}, "search"),
            ({}, {"wiki": {"path": "search"}}, "search"),
            ({"environment": "maze"}, {"search": {}}, "environment"),
            ({"tools": []}, {"python": {}}, "single_turn"),
        ],
    )
    def test_auto(self, extra: dict[str, Any], tools: dict[str, Any], expected: str) -> None:
        assert choice(Task("t", [], extra_info=extra), tools) == expected

    def test_a_run_without_tools_is_a_single_turn(self) -> None:
        made = tokenizer("chatml")
        bare = rollout_of(made, saying(made, "x"), tools=[], max_turns=5)
        assert bare.turns([Task("t", [])]) == 1
        assert bare.turns([Task("t", [], extra_info={"environment": "maze"})]) == 5
        assert rollout_of(made, saying(made, "x"), max_turns=5).turns([Task("t", [])]) == 5

    def test_search_has_its_own_tags(self) -> None:
        made = tokenizer("chatml")
        script = saying(made, "<search>who</search>", "Ada<|im_end|>")
        (trajectory,) = run(rollout_of(made, script, agent="search", tools=["echo"]))
        assert texts(trajectory, "tool") == ["\n\n<information>who</information>\n\n"]
