"""Conversations to go on with by tool calls: `messages` or `question`, `answer`, and the `tools` on offer."""

from __future__ import annotations

from typing import Any

from toolwright.tasks.datasets import DATASETS, Dataset, Example
from toolwright.tasks.rows import Row


@DATASETS.register("multi-turn-tools")
def multi_turn_tools() -> Dataset:
    return Dataset("em", {}, _example)


def _example(row: Row) -> Example:
    messages = row.get("messages") or [{"role": "user", "content": row["question"]}]
    asked = next((n for n in range(len(messages), 0, -1) if messages[n - 1].get("role") == "user"), 0)
    if not asked:
        raise ValueError("no message is the user's")
    tools = row.get("tools")
    return Example(
        prompt=messages[:asked],  # what follows is an answer
        ground_truth=row["answer"] if "answer" in row else row["ground_truth"],
        extra={} if tools is None else {"tools": [_name(tool) for tool in tools]},
        data_source=row.get("data_source"),
    )


def _name(tool: Any) -> str:
    """Return the name of a tool, which is given by name or by OpenAI's schema."""
    if isinstance(tool, dict):
        return str((tool.get("function") or tool)["name"])
    return str(tool)
