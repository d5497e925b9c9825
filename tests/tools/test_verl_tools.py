"""verl's tools by the names of their classes: the same schema, and the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolwright.tools.call import ToolRequest
from toolwright.tools.settings import settings_from
from toolwright.tools.toolbox import Toolbox
from toolwright.trajectory import Task

NAME = "calc_gsm8k_reward"
GSM8K = {
    "class_name": "verl.tools.gsm8k_tool.Gsm8kTool",
    "config": {"type": "native"},
    "tool_schema": {"type": "function", "function": {"name": NAME, "description": "Is it right?"}},
}
SEARCH = {
    "class_name": "verl.tools.search_tool.SearchTool",
    "config": {"retrieval_service_url": "http://127.0.0.1:9/retrieve", "type": "native"},
    "tool_schema": {"function": {"name": "search", "parameters": {"properties": {"query_list": {}}}}},
}


def kwargs(truth: str) -> dict[str, Any]:
    return {"tools_kwargs": {NAME: {"create_kwargs": {"ground_truth": truth}}}}


@pytest.mark.parametrize(
    ("answer", "task", "reward"),
    [
        ("18", Task("t", [], "18"), 1.0),
        ("#### 1,018", Task("t", [], "reasoning #### 1018"), 1.0),
        ("17", Task("t", [], "18"), 0.0),
        ("none", Task("t", [], "18"), 0.0),
        ("7", Task("t", [], "18", extra_info=kwargs("7")), 1.0),
    ],
)
def test_an_answer_is_compared_with_the_rows_truth(answer: str, task: Task, reward: float) -> None:
    toolbox = Toolbox(settings_from([GSM8K], "tools"))

    async def call() -> str:
        result = await toolbox.call(ToolRequest(NAME, {"answer": answer}), attempt="a", task=task)
        await toolbox.close()
        return result.text

    assert asyncio.run(call()) == f"Current parsed answer={answer!r} reward={reward}"


def test_schemas_are_those_of_the_file() -> None:
    async def schemas() -> list[dict[str, Any]]:
        toolbox = Toolbox(settings_from([GSM8K, SEARCH], "tools"))
        found = await toolbox.schemas()
        await toolbox.close()
        return found

    answer, search = (schema["function"] for schema in asyncio.run(schemas()))
    assert (answer["name"], answer["description"]) == (NAME, "Is it right?")
    assert list(answer["parameters"]["properties"]) == ["answer"]
    assert list(search["parameters"]["properties"]) == ["query_list"]
