"""Demonstrations with tools: written as attempts are, answers in their place, only our own words learned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from toolwright.agents import formats
from toolwright.agents.agent_set import AgentSet
from toolwright.agents.demonstration import Demonstrator, demonstrator_like
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task, Trajectory

from .scripted import ScriptedEngine, saying
from .templates import STYLES, everything, tokenizer

ECHO = {"echo": {"path": f"{Path(__file__).with_name('tools.py')}:echo"}}
SCHEMAS = asyncio.run(Toolbox(ECHO).schemas())
ASKED = {"role": "user", "content": "12*34?"}
CALLS = [
    {"id": "abcdefghi", "type": "function", "function": {"name": "echo", "arguments": '{"text": "408"}'}}
]


def learned(trajectory: Trajectory) -> list[str]:
    return [step.text for step in trajectory.steps]


def test_an_answer_in_place_is_not_learned() -> None:
    made = tokenizer("own")
    messages = [
        ASKED,
        {"role": "assistant", "content": "<tool>408</tool>"},
        {"role": "tool", "content": "408"},
        {"role": "assistant", "content": "408"},
    ]
    demonstrator = Demonstrator(made, formats.build("tags", {}, made), SCHEMAS, tool_prompt="")
    trajectory = demonstrator.trajectory(0, messages)
    assert [(s.source, s.text) for s in trajectory.segments] == [
        ("prompt", "<|user|>12*34?<|end|><|assistant|>"),
        ("policy", "<tool>408</tool>"),
        ("tool", "<result>408</result>"),
        ("policy", "408<|end|>"),
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", ["tags", "hermes", "llama3", "qwen3_coder", "fenced"])
@pytest.mark.parametrize("calls_as", ["text", "tool_calls"])
def test_it_is_token_by_token_what_an_attempt_would_be(style: str, name: str, calls_as: str) -> None:
    """A policy that says what was demonstrated, with a tool that answers so, leaves the same tokens."""
    made, end = tokenizer(style), STYLES[style][1]
    call_format = formats.build(name, {}, made)
    said: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": CALLS}
    if calls_as == "text":
        offered = formats.offered_by(SCHEMAS)
        text = call_format.write(formats.ToolRequest("echo", {"text": "408"}), offered)
        said = {"role": "assistant", "content": text}
    messages = [ASKED, said, {"role": "tool", "name": "echo", "content": "408"}]
    messages += [{"role": "assistant", "content": "it is 408"}]
    trajectory = Demonstrator(made, call_format, SCHEMAS).trajectory(0, messages)
    assert learned(trajectory)[-1].endswith("it is 408" + end)
    script = saying(made, *learned(trajectory))
    config = schema.RolloutConfig(call_format=name, max_tokens=999)
    rollout = Rollout(config, ScriptedEngine(made, script), made, tools=ECHO)
    (attempt,) = asyncio.run(rollout.run([AttemptRequest(Task("t", [ASKED]), "g", 0, 0)]))
    assert everything(made, attempt.tokens) == everything(made, trajectory.tokens)
    assert attempt.tokens == trajectory.tokens
    assert attempt.mask == trajectory.mask


@pytest.mark.parametrize(
    ("style", "written"),
    [
        ("qwen3", '<tool_call>\n{"name": "echo", "arguments": {"text": "408"}}\n</tool_call>'),
        ("own", "<echo>408</echo>"),
    ],
)
def test_a_run_without_tools_keeps_the_names_of_demonstrated_calls(style: str, written: str) -> None:
    """In the format that the model's own template writes."""
    made = tokenizer(style)
    agents = AgentSet(schema.RolloutConfig(), made)
    agent = agents.agent_for(Task("", []))
    teacher = asyncio.run(demonstrator_like(agent, schema.RolloutConfig(), made, agents.tools))
    said = {"role": "assistant", "content": None, "tool_calls": CALLS}
    assert written in learned(teacher.trajectory(0, [ASKED, said]))[0]


def test_a_demonstration_may_offer_tools_of_its_own() -> None:
    made = tokenizer("qwen3")
    other = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {}}}
    teacher = Demonstrator(made, formats.build("hermes", {}, made), SCHEMAS)
    prompt = (
        teacher.offering([other]).trajectory(0, [ASKED, {"role": "assistant", "content": "408"}]).segments[0]
    )
    assert '"look"' in prompt.text
    assert '"echo"' not in prompt.text


def test_calls_that_cannot_be_read_are_pointed_out() -> None:
    bad = [{"function": {"name": "echo", "arguments": "{"}}]
    messages = [ASKED, {"role": "assistant", "tool_calls": bad}]
    with pytest.raises(UserError, match="a demonstrated call of 'echo'"):
        Demonstrator(tokenizer("qwen3")).trajectory(0, messages)


def test_thoughts_before_the_last_turn_stay_as_they_were_said() -> None:
    """Qwen 3's template would forget them; the stream that the policy is trained on does not."""
    made = tokenizer("qwen3")
    messages = [
        ASKED,
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\n400?"},
        {"role": "user", "content": "no"},
        {"role": "assistant", "content": "<think>\noh\n</think>\n\n408"},
    ]
    assert learned(Demonstrator(made).trajectory(0, messages)) == [
        "<think>\nhm\n</think>\n\n400?<|im_end|>",
        "<think>\noh\n</think>\n\n408<|im_end|>",
    ]
