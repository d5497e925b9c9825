"""Answers that follow a JSON schema: asked for in each protocol, and recorded as the policy's own choices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from toolwright.agents.attempt import Attempt
from toolwright.cli import main
from toolwright.gateway.server import AttemptAddress
from toolwright.observe.rollouts import files, read

from .programs import is_what_was_sampled, native, one, scripted, tokenizer

pytest.importorskip("llguidance", reason="the package llguidance is not installed")

GO: list[Any] = [{"role": "user", "content": "go"}]
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["plus", "minus"]}, "sure": {"type": "boolean"}},
    "required": ["kind", "sure"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}


def follows(text: str | None) -> None:
    found = json.loads(text or "")
    assert list(found) == ["kind", "sure"]
    assert found["kind"] in ("plus", "minus")
    assert isinstance(found["sure"], bool)


async def chat(address: AttemptAddress) -> str | None:
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    reply = await api.chat.completions.create(model="m", messages=GO, response_format=FORMAT)
    return reply.choices[0].message.content


async def streamed(address: AttemptAddress) -> str | None:
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    stream = await api.chat.completions.create(model="m", messages=GO, response_format=FORMAT, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def responses(address: AttemptAddress) -> str | None:
    api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
    form: Any = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    return (await api.responses.create(model="m", input="go", text=form)).output_text


async def anthropic(address: AttemptAddress) -> str | None:
    api = AsyncAnthropic(base_url=address.url, api_key=address.key)
    extra = {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}}
    reply = await api.messages.create(model="m", max_tokens=400, messages=GO, extra_body=extra)
    return str(reply.content[0].text)  # type: ignore[union-attr]


@pytest.mark.parametrize("ask", [chat, streamed, responses, anthropic])
def test_an_answer_follows_its_schema(ask: Any) -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        follows(await ask(address))

    trajectory, engine = one(program, max_tokens=400)
    is_what_was_sampled([trajectory], engine)
    (step,) = trajectory.steps
    assert step.tokens[-1] in tokenizer().end_tokens
    quotes = [place for place, character in enumerate(step.text) if character == '"']
    assert 0 in step.forced  # no answer begins otherwise
    assert set(range(quotes[0] + 1, quotes[1])) <= set(step.forced), "a key is no choice"
    assert 0 < len(step.forced) < len(step.tokens)


def test_json_mode_gives_an_object() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
        reply = await api.chat.completions.create(
            model="m", messages=GO, response_format={"type": "json_object"}, max_tokens=600
        )
        choice = reply.choices[0]
        assert (choice.message.content or "").startswith("{")
        if choice.finish_reason == "stop":
            assert isinstance(json.loads(choice.message.content or ""), dict)

    one(program, max_tokens=600)


def test_the_log_probabilities_are_those_of_the_whole_distribution() -> None:
    """As with top-k: a token that a schema forced has the probability that the policy gave it."""

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        await chat(address)

    (step,) = one(program, max_tokens=400)[0].steps
    assert all(step.log_probs[place] < -0.5 for place in step.forced[:1])


@pytest.mark.parametrize(
    ("form", "more", "words"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x"}}, {}, "response_format: expected text"),
        ({"type": "json_schema", "json_schema": {"schema": {"type": "king"}}}, {}, "cannot be followed"),
        (FORMAT, {"tools": [{"type": "function", "function": {"name": "a"}}]}, "if tools are offered"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_words(form: Any, more: dict[str, Any], words: str) -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
        with pytest.raises(Exception, match=words):
            await api.chat.completions.create(model="m", messages=GO, response_format=form, **more)
        await api.chat.completions.create(model="m", messages=GO)

    one(program, engine=native())


def test_an_engine_that_knows_no_schemas_says_so() -> None:
    engine, tokens = scripted("no<|im_end|>", "no<|im_end|>")

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        with pytest.raises(Exception, match="this engine cannot hold an answer to JSON"):
            await chat(address)
        api = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
        await api.chat.completions.create(model="m", messages=GO)

    one(program, engine=engine, tokens=tokens)


AGENT = f"""
from openai import OpenAI

FORMAT = {FORMAT!r}

def score(solution_str, ground_truth):
    return float("plus" in solution_str)

def run(task):
    messages = [{{"role": "user", "content": task["question"]}}]
    reply = OpenAI().chat.completions.create(model="any", messages=messages, response_format=FORMAT)
    return reply.choices[0].message.content
"""


def test_what_a_schema_left_open_is_learned(tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text(AGENT)
    words = [
        "task=file", f"task.train={tmp_path / 'rows.jsonl'}", f"run.dir={tmp_path}", "run.name=r",
        "train.steps=8", "model.layers=1", "eval.at_start=false", "run.threads=1", "rollout.prompts=2",
        "rollout.samples=8", "rollout.max_tokens=200", f"reward.function={file}:score",
        f"rollout.agent={file}:run", "update.policy.lr=0.003", "task.held_out_size=2",
    ]  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": f'{{"plusminus kind sure true false": {n}}}'}],
             "data_source": "x", "reward_model": {"ground_truth": ""}} for n in range(8)]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(["train", *words]) == 0
    metrics = [json.loads(line) for line in (tmp_path / "r" / "metrics.jsonl").read_text().splitlines()]
    assert max(row["gap/abs_max"] for row in metrics) == 0.0
    kept = read(files(tmp_path / "r")[1])
    assert all(0 < len(step.forced) < len(step.tokens) for t in kept for step in t.steps)
    assert metrics[-1]["reward/mean"] > metrics[0]["reward/mean"]
