"""A simulated user: speaks where the policy ends its turn, until content, and never scores by an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agents.attempts import rollout_of, run
from tests.agents.scripted import saying
from tests.agents.templates import tokenizer
from tests.json_server import json_server
from toolwright.failures import UserError
from toolwright.tasks import interaction
from toolwright.tasks.interactions.gsm8k import RIGHT, WRONG
from toolwright.trajectory import Task, Trajectory

GSM8K = {"class": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}

OWN = """
from verl.interactions.base import BaseInteraction
from verl.utils.rollout_trace import rollout_trace_op

class CountingInteraction(BaseInteraction):
    def __init__(self, config):
        super().__init__(config)
        self.seen = {}

    async def start_interaction(self, instance_id=None, wanted=2, **kwargs):
        self.seen[instance_id] = wanted
        return instance_id

    @rollout_trace_op
    async def generate_response(self, instance_id, messages, **kwargs):
        said = [m for m in messages if m["role"] == "assistant"]
        if self.config.get("fails"):
            raise ValueError("no")
        return len(said) >= self.seen[instance_id], f"turn {len(said)} of {self.name}", 0.25, {}

    async def finalize_interaction(self, instance_id, **kwargs):
        del self.seen[instance_id]
"""


def attempt(*turns: str, who: dict[str, Any], tools: tuple[str, ...] = (), **config: Any) -> Trajectory:
    made = tokenizer("chatml")
    ended = [turn if turn.startswith("<") else f"{turn}<|im_end|>" for turn in turns]
    rollout = rollout_of(made, saying(made, *ended), tools=tools, agent="interaction", **config)
    (trajectory,) = run(rollout, interaction=who)
    return trajectory


def test_the_user_says_what_is_wrong_and_is_content_with_the_right_answer() -> None:
    who = {**GSM8K, "arguments": {"name": "gsm8k", "ground_truth": "42"}}
    trajectory = attempt("#### 41", "I see: #### 42", "unused", who=who)
    assert trajectory.failure is None
    assert [step.reward for step in trajectory.steps] == [0.0, 1.0]
    said = [s.text for s in trajectory.segments if s.source == "environment"]
    assert len(said) == 1
    assert WRONG in said[0]
    assert RIGHT not in said[0]
    assert trajectory.stop == "done"
    assert trajectory.counts["user_turns"] == 2


def test_turns_are_limited() -> None:
    who = {**GSM8K, "arguments": {"ground_truth": "42"}}
    trajectory = attempt("no", "no", "no", "no", who=who, max_turns=2)
    assert trajectory.stop == "turns"
    assert trajectory.turns == 2


def test_tools_are_called_within_the_conversation() -> None:
    who = {**GSM8K, "arguments": {"ground_truth": "3"}}
    turns = ("#### 4", "<echo>hello</echo>", "#### 3")
    trajectory = attempt(*turns, who=who, tools=("echo",), call_format="tags", call_params={"call": "echo"})
    assert trajectory.failure is None, trajectory.failure
    assert [s.source for s in trajectory.segments] == [
        *("prompt", "policy", "environment", "policy", "tool", "policy")
    ]


def test_a_class_written_for_verl_answers(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    who = {"class": f"{file}:CountingInteraction", "config": {"name": "counter"}, "arguments": {"wanted": 3}}
    trajectory = attempt("a", "b", "c", "d", who=who)
    assert trajectory.turns == 3
    assert "turn 2 of counter" in trajectory.segments[-2].text


def test_an_error_of_the_user_is_no_score(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN)
    who = {"class": f"{file}:CountingInteraction", "config": {"fails": True}, "arguments": {}}
    trajectory = attempt("a", who=who)
    assert trajectory.failure is not None
    assert trajectory.failure.kind == "task"
    assert "the simulated user failed: ValueError: no" in trajectory.failure.message


def wants_two_answers(_: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a chat model says that plays such a user."""
    heard = [m["content"] for m in body["messages"] if m["role"] == "user"]
    text = "Shorter, please." if len(heard) < 2 else "Thanks! [[DONE]]"
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "user", "choices": [choice]}


@pytest.fixture
def served() -> Iterator[str]:
    with json_server(wants_two_answers) as url:
        yield f"{url}/v1"


def test_a_model_plays_the_user(served: str) -> None:
    pytest.importorskip("openai", reason="the client of chat models")
    who = {"class": "chat", "config": {"base_url": served, "model": "user"}, "arguments": {}}
    trajectory = attempt("a long answer", "short", "unused", who=who)
    assert trajectory.failure is None, trajectory.failure
    assert trajectory.turns == 2
    assert trajectory.stop == "done"
    assert "Shorter, please." in trajectory.segments[2].text


def test_a_file_names_who_answers_each_task(tmp_path: Path) -> None:
    file = tmp_path / "users.yaml"
    entry = {"class_name": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}
    file.write_text(yaml.safe_dump({"interaction": [entry]}))
    known = interaction.read_interactions(file)
    task = Task("t", [], "7", extra_info={"interaction_kwargs": {"name": "gsm8k", "query": "?"}})
    own = interaction.with_interaction(task, known).extra_info["interaction"]
    assert own["arguments"] == {"ground_truth": "7", "name": "gsm8k", "query": "?"}
    with pytest.raises(UserError, match="is not an interaction of the file; known: gsm8k"):
        interaction.with_interaction(Task("t", [], extra_info={"interaction_kwargs": {"name": "x"}}), known)
    file.write_text(yaml.safe_dump({"interaction": [{"class_name": "nobody.Knows"}]}))
    with pytest.raises(UserError, match="no module named 'nobody'"):
        interaction.read_interactions(file)
