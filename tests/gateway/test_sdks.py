"""Loops with tools by OpenAI's and Anthropic's SDKs: what is trained is what was sampled."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from toolwright.agents.attempt import Attempt
from toolwright.agents.formats.tags import Tags
from toolwright.agents.rollout import AttemptRequest, Rollout
from toolwright.config import schema
from toolwright.gateway.server import AttemptAddress
from toolwright.trajectory import Task, Trajectory

from .conftest import Taught
from .programs import ADD, attempts, gap, is_what_was_sampled

FUNCTION = ADD["function"]
QUESTION = "2+3?"
TASK = Task("t", [{"role": "user", "content": QUESTION}], ground_truth="5")


def added(arguments: dict[str, Any]) -> str:
    try:
        return str(int(arguments["a"]) + int(arguments["b"]))
    except (KeyError, TypeError, ValueError) as error:
        return f"wrong: {error}"


async def chat(address: AttemptAddress, attempt: Attempt) -> str:
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(4):
        reply = await api.chat.completions.create(model="gpt-4o", messages=messages, tools=[ADD])
        assert reply.model == "gpt-4o"  # some clients compare it with what they asked for
        said = reply.choices[0].message
        messages.append(said)
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            answer = added(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})
    return said.content or ""


async def streamed(address: AttemptAddress, attempt: Attempt) -> None:
    """By the key alone: the address has none in it."""
    url = address.url.partition("/attempt/")[0]
    api = AsyncOpenAI(base_url=f"{url}/v1", api_key=address.key)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(4):
        async with api.chat.completions.stream(model="m", messages=messages, tools=[ADD]) as stream:
            said = (await stream.get_final_completion()).choices[0].message
        messages.append(said.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
        if not said.tool_calls:
            break
        for call in said.tool_calls:
            answer = added(json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": answer})


async def responses(address: AttemptAddress, attempt: Attempt) -> None:
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    tool: Any = {"type": "function", "strict": False, **FUNCTION}
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(4):
        reply = await api.responses.create(model="m", input=items, tools=[tool])
        items += reply.output
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        for call in calls:
            output = added(json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})


async def responses_by_id(address: AttemptAddress, attempt: Attempt) -> None:
    """Streamed; the server remembers what was said before."""
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    tool: Any = {"type": "function", "strict": False, **FUNCTION}
    items: Any = QUESTION
    more: dict[str, Any] = {}
    for _ in range(4):
        async with api.responses.stream(model="m", input=items, tools=[tool], **more) as stream:
            reply = await stream.get_final_response()
        more = {"previous_response_id": reply.id}
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        items = [
            {"type": "function_call_output", "call_id": c.call_id, "output": added(json.loads(c.arguments))}
            for c in calls
        ]


async def claude(address: AttemptAddress, attempt: Attempt) -> None:
    api = AsyncAnthropic(base_url=address.url, api_key=address.key)
    tool: Any = {"name": "add", "description": "Adds.", "input_schema": FUNCTION["parameters"]}
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for turn in range(4):
        if turn % 2:
            async with api.messages.stream(
                model="m", max_tokens=64, messages=messages, tools=[tool]
            ) as stream:
                reply = await stream.get_final_message()
        else:
            reply = await api.messages.create(model="m", max_tokens=64, messages=messages, tools=[tool])
        messages.append({"role": "assistant", "content": reply.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": added(dict(block.input))}
            for block in reply.content
            if block.type == "tool_use"
        ]
        if not results or not reply.content:
            break
        messages.append({"role": "user", "content": results})


PROGRAMS = {f.__name__: f for f in (chat, streamed, responses, responses_by_id, claude)}


@pytest.mark.parametrize("count", [8, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_tokens_are_trained_as_they_were_sampled(name: str, count: int, policy: Taught) -> None:
    made, engine = attempts(
        PROGRAMS[name], engine=policy.engine(), tokens=policy.tokenizer, tasks=[TASK], count=count,
        call_format="tags", max_tokens=64,
    )  # fmt: skip
    assert [t.failure for t in made if t.failure] == []
    is_what_was_sampled(made, engine)
    assert sum(t.turns > 1 for t in made) > count / 2  # several turns, tools called
    assert sum(t.counts["branches"] for t in made) == 0
    assert gap(policy.decoder, made) == 0.0


def test_a_loop_of_the_sdk_samples_what_our_own_does(policy: Taught, tmp_path: Any) -> None:
    made, _ = attempts(
        chat, engine=policy.engine(), tokens=policy.tokenizer, tasks=[TASK], count=12, call_format="tags",
        max_tokens=64, max_turns=4,
    )  # fmt: skip
    file = tmp_path / "tools.py"
    file.write_text('def add(a: int, b: int) -> str:\n    """Adds."""\n    return str(a + b)\n')
    config = schema.RolloutConfig(
        agent="tool_use", call_format="tags", max_tokens=64, max_turns=4,
        tool_prompt=instructions(policy),
    )  # fmt: skip
    engine = policy.engine()
    rollout = Rollout(config, engine, policy.tokenizer, tools={"add": {"path": f"{file}:add"}})

    async def run() -> list[Trajectory]:
        try:
            return await rollout.run([AttemptRequest(TASK, "g0", i, i) for i in range(12)])
        finally:
            await rollout.close()
            await engine.close()

    own = asyncio.run(run())
    alike = [a for a in own if not a.counts.get("tool_errors") and not a.counts.get("format_faults")]
    assert len(alike) > 6
    for attempt in alike:
        other = made[attempt.index]
        assert [s.tokens for s in other.segments] == [s.tokens for s in attempt.segments]
        assert [s.log_probs for s in other.segments] == [s.log_probs for s in attempt.segments]


def instructions(policy: Taught) -> str:
    return Tags().instructions([ADD])


def test_sampling_is_the_runs_unless_the_agent_may_choose(policy: Taught) -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
        await api.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hello"}], temperature=0.1, max_tokens=4, seed=3
        )

    for who, recorded in (("run", None), ("agent", 0.1)):
        (trajectory,), _ = attempts(program, agent={"sampling": who})
        assert trajectory.failure is None
        assert trajectory.counts.get("temperature") == recorded
        assert trajectory.sampled_tokens <= 4
