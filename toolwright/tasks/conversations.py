"""Conversations to learn from, in the forms that data sets have them.

| form | columns |
| --- | --- |
| OpenAI | `messages` |
| ShareGPT | `conversations`, whose messages have `from` and `value` |
| Alpaca | `instruction`, `input`, `output` |
| pairs | `prompt`, `question` or `query`; `completion`, `response` or `answer`; also within `extra_info` |

Each may have `system`, the system message, and `tools`, the tools that the conversation calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolwright.failures import UserError
from toolwright.tasks.messages import ROLES, messages_of
from toolwright.tasks.rows import Row

Message = dict[str, Any]
WHOLE = ("messages", "conversations", "conversation")
ASKED, ANSWERED = ("prompt", "question", "query"), ("response", "completion", "answer")
SPEAKERS = {"human": "user", "gpt": "assistant", "observation": "tool", "function_response": "tool"}
CALL = "function_call"  # ShareGPT's message of the assistant that is a call


@dataclass(frozen=True)
class Conversation:
    """`tools`: OpenAI schemas of the conversation's own tools; None if it says nothing about tools."""

    messages: list[Message]
    tools: list[Message] | None = None


def conversation_of(row: Row, where: str) -> Conversation:
    """Read the conversation of a row."""
    messages = _messages(row, where)
    system = row.get("system")
    if isinstance(system, str) and system and messages[:1] and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return Conversation(messages, tools_of(row, where))


def _messages(row: Row, where: str) -> list[Message]:
    column = next((name for name in WHOLE if row.get(name) is not None), None)
    if column is not None:
        messages = row[column]
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise UserError(f"{where}: expected `{column}`, a list of chat messages")
        return [_message(one, f"{where}: message {n} of `{column}`") for n, one in enumerate(messages, 1)]
    if row.get("instruction") is not None and row.get("output") is not None:
        instruction = "\n\n".join(str(part) for part in (row["instruction"], row.get("input")) if part)
        return [
            {"role": "user", "content": instruction},
            {"role": "assistant", "content": str(row["output"])},
        ]
    inner = row.get("extra_info")
    for holder in (row, inner if isinstance(inner, dict) else {}):
        asked = next((name for name in ASKED if holder.get(name) is not None), None)
        answered = next((name for name in ANSWERED if holder.get(name) is not None), None)
        if asked and answered:
            said = messages_of(holder[answered], where, column=answered, said_by="assistant")
            return [*messages_of(holder[asked], where, column=asked), *said]
    raise UserError(
        f"{where}: expected `messages` or `conversations`, a list of chat messages, or `prompt` or "
        "`question` with `response`, `completion` or `answer`, or `instruction` with `output`; the row has "
        f"{', '.join(row) or 'nothing'}"
    )


def _message(message: Message, which: str) -> Message:
    """A message in OpenAI's form, whichever form it has."""
    if "role" in message or "from" not in message:
        if "role" not in message:
            raise UserError(f"{which} needs a role, one of {', '.join(ROLES)}")
        return message
    speaker, said = message["from"], message.get("value")
    if speaker == CALL:
        return {"role": "assistant", "content": None, "tool_calls": _calls(said, which)}
    role = SPEAKERS.get(speaker, speaker)
    if role not in ROLES:
        raise UserError(f"{which} is from {speaker!r}; known: {', '.join([*SPEAKERS, CALL, *ROLES])}")
    return {"role": role, "content": said or ""}


def _calls(said: Any, which: str) -> list[Message]:
    calls = _parsed(said, which)
    calls = calls if isinstance(calls, list) else [calls]
    if not all(isinstance(call, dict) and isinstance(call.get("name"), str) for call in calls):
        raise UserError(f"{which} must be a call: JSON with `name` and `arguments`")
    return [{"type": "function", "function": call} for call in calls]


def tools_of(row: Row, where: str) -> list[Message] | None:
    """OpenAI schemas, from a list or its JSON text; the functions may stand alone."""
    tools = row.get("tools")
    if tools is None or tools == "":
        return None
    tools = _parsed(tools, f"{where}: `tools`")
    if not isinstance(tools, list):
        raise UserError(f"{where}: `tools` must be a list of JSON schemas, found {type(tools).__name__}")
    schemas = []
    for number, tool in enumerate(tools, 1):
        tool = _parsed(tool, f"{where}: tool {number} of `tools`")
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise UserError(
                f"{where}: tool {number} of `tools` must be a JSON schema of a function, with a name"
            )
        schemas.append({"type": "function", "function": _without_nulls(function)})
    return schemas


def _parsed(value: Any, which: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{which} is not JSON: {error}") from None


def _without_nulls(value: Any) -> Any:
    """A Parquet column gives every tool the parameters of all of them, most of them null."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
