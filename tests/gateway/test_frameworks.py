"""Agents of other packages, unmodified: told an address and a key, and trained on what they sampled."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from openai import AsyncOpenAI

from tests.agents.templates import tokenizer as chat_tokenizer
from toolwright.agents.attempt import Attempt
from toolwright.config import schema
from toolwright.engines.native.engine import NativeEngine
from toolwright.gateway.server import AttemptAddress

from .programs import Dictated, Program, Recording, attempts, decoder, gap, is_what_was_sampled

pytestmark = pytest.mark.slow
QUESTION = "What is 2+3? And 4 more?"
COUNT = 50
CONTEXT = 16_384  # the instructions of some frameworks are long, byte by byte


def add(a: int, b: int) -> int:
    """Add two integers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def calling(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def adds(number: int) -> tuple[str, ...]:
    """What the policy says in an attempt: a call, two at once, and an answer."""
    return (
        "I add. " + calling("add", a=2, b=number),
        calling("add", a=number, b=4) + "\n" + calling("add", a=1, b=1),
        f"It is {number}.",
    )


def run(program: Program, turns: Callable[[int], tuple[str, ...]] = adds) -> list[Any]:
    """Attempts by a real engine that is told what to say, each as hermes has it."""
    tokens = chat_tokenizer("chatml")
    policy = decoder(tokens.size, CONTEXT)

    def script(attempt: str, turn: int) -> list[int]:
        return tokens.encode(f"{turns(int(attempt.partition('/')[2]))[turn]}<|im_end|>")

    native = NativeEngine(
        schema.EngineConfig(slots=16), decoder=policy, tokenizer=tokens, dtype=torch.float32
    )
    made, engine = attempts(
        program, engine=Recording(Dictated(native, script)), tokens=tokens, count=COUNT,
        call_format="hermes", agent={"concurrency": 16}, timeout_s=300,
    )  # fmt: skip
    assert [t.failure for t in made if t.failure] == []
    is_what_was_sampled(made, engine)
    assert {t.turns for t in made} == {len(turns(0))}
    assert gap(policy, made) == 0.0
    return made


def linear(made: list[Any]) -> None:
    assert sum(t.counts["branches"] for t in made) == 0


def test_pydantic_ai() -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="the package pydantic-ai is not installed")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        provider = OpenAIProvider(base_url=f"{address.url}/v1", api_key=address.key)
        agent = pydantic_ai.Agent(OpenAIChatModel("m", provider=provider), tools=[add])
        return str((await agent.run(QUESTION)).output)

    made = run(program)
    linear(made)
    assert [t.result["answer"] for t in made] == [f"It is {n}." for n in range(COUNT)]


@pytest.fixture
def openai_agents(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its module is called `agents`, as a folder of these tests is."""
    here = Path(__file__).parents[1]
    monkeypatch.setattr(sys, "path", [place for place in sys.path if Path(place).resolve() != here])
    for name in [name for name in sys.modules if name.partition(".")[0] == "agents"]:
        monkeypatch.delitem(sys.modules, name)
    found = pytest.importorskip("agents", reason="the package openai-agents is not installed")
    if not hasattr(found, "Runner"):
        pytest.skip("the package openai-agents is not installed")
    yield found
    for name in [name for name in sys.modules if name.partition(".")[0] == "agents"]:
        del sys.modules[name]


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_openai_agents(protocol: str, openai_agents: Any) -> None:
    agents = openai_agents
    agents.set_tracing_disabled(True)

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        client = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key)
        kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[protocol]
        agent = agents.Agent(
            name="sums", instructions="Use the tool.", tools=[agents.function_tool(add)],
            model=kind(model="m", openai_client=client),
        )  # fmt: skip
        return str((await agents.Runner.run(agent, QUESTION)).final_output)

    linear(run(program))


def test_langgraph() -> None:
    prebuilt = pytest.importorskip("langgraph.prebuilt", reason="the package langgraph is not installed")
    chat = pytest.importorskip("langchain_openai", reason="the package langchain-openai is not installed")

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = chat.ChatOpenAI(model="m", base_url=f"{address.url}/v1", api_key=address.key)
        graph = prebuilt.create_react_agent(model, [add])
        said = await graph.ainvoke({"messages": [("user", QUESTION)]})
        return str(said["messages"][-1].content)

    linear(run(program))


def test_smolagents() -> None:
    """It sends calls back as text, so each turn is a branch of its own."""
    smolagents = pytest.importorskip("smolagents", reason="the package smolagents is not installed")
    tool = smolagents.tool(add)

    def answers(number: int) -> tuple[str, ...]:
        return (*adds(number)[:2], calling("final_answer", answer=str(number)))

    def solve(address: AttemptAddress) -> str:
        model = smolagents.OpenAIModel("m", api_base=f"{address.url}/v1", api_key=address.key)
        agent = smolagents.ToolCallingAgent(tools=[tool], model=model, verbosity_level=0, max_steps=6)
        return str(agent.run(QUESTION))

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        return await asyncio.to_thread(solve, address)

    made = run(program, answers)
    assert [t.result["answer"] for t in made] == [str(n) for n in range(COUNT)]


def in_node(folder: Path, source: str, *packages: str, how: str = "") -> Program:
    """A program in JavaScript that gets the address, the key, the question and `how` as its arguments."""
    places = [Path(place) for place in os.environ.get("NODE_PATH", "").split(os.pathsep) if place]
    found = [place for place in places if all((place / package).is_dir() for package in packages)]
    if not found or shutil.which("node") is None:
        pytest.skip(f"node is not installed, or no folder of NODE_PATH has {', '.join(packages)}")
    script = folder / "agent.mjs"
    script.write_text(source)
    (folder / "node_modules").symlink_to(found[0], target_is_directory=True)  # `import` knows no NODE_PATH

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        words = ("node", str(script), f"{address.url}/v1", address.key, QUESTION, how)
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0
        return out.decode()

    return program


def test_node(tmp_path: Path) -> None:
    linear(run(in_node(tmp_path, NODE, "openai")))


NODE = """
import OpenAI from "openai";
const [url, key, question] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: key });
const parameters = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } } };
const tools = [{ type: "function", function: { name: "add", description: "Adds.", parameters } }];
const messages = [{ role: "user", content: question }];
for (;;) {
  const said = (await client.chat.completions.create({ model: "m", messages, tools })).choices[0].message;
  messages.push(said);
  if (!said.tool_calls?.length) { console.log(said.content); break; }
  for (const call of said.tool_calls) {
    const { a, b } = JSON.parse(call.function.arguments);
    messages.push({ role: "tool", tool_call_id: call.id, content: String(a + b) });
  }
}
"""
