"""More agents of other packages. They want another `openai` than those of test_frameworks.py."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel

from toolwright.agents.attempt import Attempt
from toolwright.gateway.server import AttemptAddress

from .programs import ADD
from .test_frameworks import COUNT, QUESTION, add, calling, in_node, linear, run

pytestmark = pytest.mark.slow


def needs(module: str, package: str = "") -> Any:
    return pytest.importorskip(module, reason=f"the package {package or module} is not installed")


def answered(made: list[Any]) -> None:
    for number, attempt in enumerate(made):
        assert attempt.result["answer"].endswith(f"It is {number}.")


@pytest.mark.parametrize("protocol", ["openai", "anthropic"])
def test_litellm(protocol: str) -> None:
    litellm = needs("litellm")

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        url = f"{address.url}/v1" if protocol == "openai" else address.url
        place = {"model": f"{protocol}/m", "api_base": url, "api_key": address.key}
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        while True:
            reply = await litellm.acompletion(**place, messages=messages, tools=[ADD])
            said = reply.choices[0].message
            if not said.tool_calls:
                return str(said.content)
            messages.append(said)
            for call in said.tool_calls:
                total = add(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": str(total)})

    made = run(program)
    linear(made)
    answered(made)


def test_autogen() -> None:
    agents = needs("autogen_agentchat.agents", "autogen-agentchat")
    openai = needs("autogen_ext.models.openai", "autogen-ext")
    abilities = {
        "vision": False, "function_calling": True, "json_output": False, "structured_output": False,
        "family": "unknown",
    }  # fmt: skip

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = openai.OpenAIChatCompletionClient(
            model="m", base_url=f"{address.url}/v1", api_key=address.key, model_info=abilities
        )
        agent = agents.AssistantAgent("sums", model_client=model, tools=[add], max_tool_iterations=3)
        result = await agent.run(task=QUESTION)
        return str(result.messages[-1].content)

    made = run(program)
    linear(made)
    answered(made)


def test_agno() -> None:
    agno = needs("agno.agent", "agno")
    from agno.models.openai import OpenAIChat

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = OpenAIChat(id="m", base_url=f"{address.url}/v1", api_key=address.key)
        agent = agno.Agent(model=model, tools=[add], telemetry=False)
        return str((await agent.arun(QUESTION)).content)

    made = run(program)
    linear(made)
    answered(made)


def test_strands() -> None:
    strands = needs("strands", "strands-agents")
    from strands.models.openai import OpenAIModel

    tool = strands.tool(add)

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        place = {"base_url": f"{address.url}/v1", "api_key": address.key}
        agent = strands.Agent(
            model=OpenAIModel(client_args=place, model_id="m"), tools=[tool], callback_handler=None
        )
        return str(await agent.invoke_async(QUESTION)).strip()

    made = run(program)
    linear(made)
    answered(made)


def test_llama_index() -> None:
    workflow = needs("llama_index.core.agent.workflow", "llama-index-core")
    like = needs("llama_index.llms.openai_like", "llama-index-llms-openai-like")

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = like.OpenAILike(
            model="m", api_base=f"{address.url}/v1", api_key=address.key,
            is_chat_model=True, is_function_calling_model=True,
        )  # fmt: skip
        return str(await workflow.FunctionAgent(tools=[add], llm=model).run(QUESTION))

    made = run(program)
    linear(made)
    answered(made)


def test_haystack() -> None:
    haystack = needs("haystack.components.agents", "haystack-ai")
    from haystack.components.generators.chat import OpenAIChatGenerator
    from haystack.dataclasses import ChatMessage
    from haystack.tools import create_tool_from_function
    from haystack.utils import Secret

    tool = create_tool_from_function(add)

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = OpenAIChatGenerator(
            model="m", api_base_url=f"{address.url}/v1", api_key=Secret.from_token(address.key)
        )
        agent = haystack.Agent(chat_generator=model, tools=[tool])
        agent.warm_up()
        result = await agent.run_async(messages=[ChatMessage.from_user(QUESTION)])
        return str(result["messages"][-1].text)

    made = run(program)
    linear(made)
    answered(made)


def test_google_adk() -> None:
    adk = needs("google.adk.agents", "google-adk")
    needs("litellm")
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = LiteLlm(model="openai/m", api_base=f"{address.url}/v1", api_key=address.key)
        runner = InMemoryRunner(adk.LlmAgent(name="sums", model=model, tools=[add]), app_name="sums")
        session = await runner.session_service.create_session(app_name="sums", user_id="u")
        said = ""
        message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
        async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content:
                said = "".join(part.text or "" for part in event.content.parts)
        return said

    made = run(program)
    linear(made)
    answered(made)


def test_crewai(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    crewai = pytest.importorskip(
        "crewai", reason="crewai needs an environment of its own, without the mcp 2 that others want"
    )
    from crewai.tools import tool

    given = tool(add)

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = crewai.LLM(model="openai/m", base_url=f"{address.url}/v1", api_key=address.key)
        agent = crewai.Agent(role="sums", goal="add", backstory="You add.", llm=model, tools=[given])
        return str((await agent.kickoff_async(QUESTION)).raw)

    made = run(program)
    linear(made)
    answered(made)


def test_instructor() -> None:
    instructor = needs("instructor")

    class Total(BaseModel):
        total: int

    def turns(number: int) -> tuple[str, ...]:
        """The first is not what was asked for, so that it is asked again."""
        return (calling("Total", total="many"), calling("Total", total=number))

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        client = instructor.from_openai(AsyncOpenAI(base_url=f"{address.url}/v1", api_key=address.key))
        message = {"role": "user", "content": QUESTION}
        found = await client.chat.completions.create(model="m", messages=[message], response_model=Total)
        return str(found.total)

    made = run(program, turns)
    linear(made)
    assert [t.result["answer"] for t in made] == [str(n) for n in range(COUNT)]


def test_dspy() -> None:
    """It writes a prompt of its own for each turn, so that each is a branch."""
    dspy = needs("dspy")

    def turns(number: int) -> tuple[str, ...]:
        def step(name: str, **arguments: Any) -> str:
            fields = {"next_thought": "So.", "next_tool_name": name, "next_tool_args": json.dumps(arguments)}
            return "\n\n".join(f"[[ ## {k} ## ]]\n{v}" for k, v in fields.items())

        last = f"[[ ## reasoning ## ]]\nSo.\n\n[[ ## answer ## ]]\nIt is {number}.\n\n[[ ## completed ## ]]"
        return (step("add", a=2, b=number), step("finish"), last)

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        model = dspy.LM("openai/m", api_base=f"{address.url}/v1", api_key=address.key, cache=False)
        with dspy.context(lm=model):
            return str((await dspy.ReAct("question -> answer", tools=[add]).acall(question=QUESTION)).answer)

    made = run(program, turns)
    assert {t.counts["branches"] for t in made} == {2}
    answered(made)


def test_mini_swe_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")
    swe = needs("minisweagent.agents.default", "mini-swe-agent")
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    def turns(number: int) -> tuple[str, ...]:
        return (
            "I look. " + calling("bash", command="expr 2 + 3"),
            calling("bash", command=f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo It is {number}."),
        )

    def solve(address: AttemptAddress) -> str:
        model = LitellmModel(
            model_name="openai/m", cost_tracking="ignore_errors",
            model_kwargs={"api_base": f"{address.url}/v1", "api_key": address.key},
        )  # fmt: skip
        agent = swe.DefaultAgent(
            model, LocalEnvironment(cwd=str(tmp_path)), system_template="You use bash.",
            instance_template="{{task}}",
        )  # fmt: skip
        return str(agent.run(QUESTION)["submission"]).strip()

    async def program(address: AttemptAddress, attempt: Attempt) -> str:
        return await asyncio.to_thread(solve, address)

    made = run(program, turns)
    linear(made)
    answered(made)


AI = """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
const [url, key, question, how] = process.argv.slice(2);
const properties = { a: { type: "integer" }, b: { type: "integer" } };
const add = tool({
  description: "Adds.",
  inputSchema: jsonSchema({ type: "object", properties, required: ["a", "b"] }),
  execute: async ({ a, b }) => a + b,
});
const model = createOpenAICompatible({ name: "policy", baseURL: url, apiKey: key })("m");
const asked = { model, prompt: question, tools: { add }, stopWhen: stepCountIs(4) };
const said = how === "stream" ? streamText(asked) : await generateText(asked);
console.log(await said.text);
"""


@pytest.mark.parametrize("how", ["stream", "whole"])
def test_vercel_ai(how: str, tmp_path: Path) -> None:
    made = run(in_node(tmp_path, AI, "ai", "@ai-sdk/openai-compatible", how=how))
    linear(made)
    answered(made)


LANGCHAIN = """
import { ChatOpenAI } from "@langchain/openai";
import { tool } from "@langchain/core/tools";
const [url, key, question] = process.argv.slice(2);
const properties = { a: { type: "integer" }, b: { type: "integer" } };
const add = tool(async ({ a, b }) => String(a + b), {
  name: "add",
  description: "Adds.",
  schema: { type: "object", properties, required: ["a", "b"] },
});
const model = new ChatOpenAI({ model: "m", apiKey: key, configuration: { baseURL: url } }).bindTools([add]);
const messages = [{ role: "user", content: question }];
for (;;) {
  const said = await model.invoke(messages);
  messages.push(said);
  if (!said.tool_calls.length) { console.log(said.content); break; }
  for (const call of said.tool_calls) messages.push(await add.invoke(call));
}
"""


def test_langchain_js(tmp_path: Path) -> None:
    made = run(in_node(tmp_path, LANGCHAIN, "@langchain/openai", "@langchain/core"))
    linear(made)
    answered(made)
