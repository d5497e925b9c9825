"""Conversations in the forms that data sets have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolwright.failures import UserError
from toolwright.tasks import rows
from toolwright.tasks.conversations import conversation_of

TALK = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
ADD = {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
ADDS = [{"type": "function", "function": ADD}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TALK},
        {"conversations": TALK},
        {"conversations": [{"from": "human", "value": "1+1="}, {"from": "gpt", "value": "2"}]},
        {"instruction": "1+1=", "input": "", "output": "2"},
        {"prompt": "1+1=", "completion": "2"},
        {"query": "1+1=", "response": "2"},
        {"prompt": TALK[:1], "completion": TALK[1:]},
        {"question": "1+1=", "answer": "2"},
    ],
)
def test_forms_of_one_conversation(row: dict[str, Any]) -> None:
    assert conversation_of(row, "row 1").messages == TALK
    system = {"role": "system", "content": "Be brief."}
    assert conversation_of({**row, "system": "Be brief."}, "row 1").messages == [system, *TALK]


def test_the_input_of_an_instruction_follows_it() -> None:
    row = {"instruction": "Add.", "input": "1 and 1", "output": "2"}
    assert conversation_of(row, "row 1").messages[0]["content"] == "Add.\n\n1 and 1"


def test_calls_of_sharegpt() -> None:
    said = [
        {"from": "human", "value": "1+1="},
        {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
        {"from": "observation", "value": "2"},
        {"from": "gpt", "value": "2"},
    ]
    _, call, answer, _ = conversation_of({"conversations": said}, "row 1").messages
    assert call["tool_calls"] == [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert answer == {"role": "tool", "content": "2"}


@pytest.mark.parametrize("tools", [ADDS, [ADD], json.dumps(ADDS), json.dumps([ADD]), [json.dumps(ADD)]])
def test_forms_of_tools(tools: Any) -> None:
    assert conversation_of({"messages": TALK, "tools": tools}, "row 1").tools == ADDS


def test_tools_in_parquet_have_only_their_own_parameters(tmp_path: Path) -> None:
    other = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
    table = pa.Table.from_pylist([{"messages": TALK, "tools": [one]} for one in (ADD, other)])
    pq.write_table(table, tmp_path / "said.parquet")
    found = [conversation_of(row, "row").tools for row in rows.read(tmp_path / "said.parquet")]
    assert found == [[{"type": "function", "function": one}] for one in (ADD, other)]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "1+1=2"}, "row 1: expected `messages` or `conversations`, .*; the row has text"),
        ({"messages": [{"content": "?"}]}, "row 1: message 1 of `messages` needs a role, one of system, "),
        ({"conversations": [{"from": "bird", "value": "?"}]}, "message 1 of `conversations` is from 'bird'"),
        ({"conversations": [{"from": "function_call", "value": "add"}]}, "is not JSON"),
        ({"conversations": [{"from": "function_call", "value": "[1]"}]}, "JSON with `name` and `arguments`"),
        ({"messages": TALK, "tools": "add"}, "row 1: `tools` is not JSON"),
        ({"messages": TALK, "tools": [{"title": "add"}]}, "tool 1 of `tools` must be a JSON schema"),
    ],
)
def test_a_row_that_cannot_be_read(row: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        conversation_of(row, "row 1")
