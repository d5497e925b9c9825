"""Conversations in Anthropic's content blocks and in OpenAI's messages: each from the other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from toolwright.agents.formats.arguments import Unreadable, read_json
from toolwright.failures import UserError
from toolwright.providers.chat import Messages, Tools

Block = dict[str, Any]


def from_messages(messages: Messages) -> tuple[str, list[dict[str, Any]]]:
    """Turn OpenAI's messages into the system text and Anthropic's turns. Tool results become blocks of the
    user, and neighbours of one role one turn, as the protocol requires."""
    system: list[str] = []
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = message["role"]
        if role in ("system", "developer"):
            system.append(plain_text(message.get("content")))
            continue
        if role == "tool":
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": message.get("tool_call_id", ""),
                    "content": plain_text(message.get("content")),
                }
            ]
            role = "user"
        else:
            blocks = _blocks(message)
        if not blocks:
            continue  # the API refuses an empty turn
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return "\n\n".join(filter(None, system)), turns


def from_tools(tools: Tools) -> list[dict[str, Any]]:
    translated = []
    for function in (tool["function"] for tool in tools):
        empty = {"type": "object", "properties": {}}
        tool = {"name": function["name"], "input_schema": function.get("parameters") or empty}
        if function.get("description"):
            tool["description"] = function["description"]
        translated.append(tool)
    return translated


def to_messages(system: str | Sequence[Mapping[str, Any]] | None, turns: Messages) -> list[dict[str, Any]]:
    """The inverse of `from_messages`: a message for each tool result, before the user's text in that turn."""
    messages: list[dict[str, Any]] = []
    if system:
        messages.append({"role": "system", "content": plain_text(system)})
    for turn in turns:
        role, content = turn["role"], turn["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        for block in blocks:
            if block["type"] == "tool_result":
                messages.append(
                    {
                        "role": "tool",
                        "tool_call_id": block["tool_use_id"],
                        "content": plain_text(block.get("content")),
                    }
                )
        text = plain_text([block for block in blocks if block["type"] == "text"])
        calls = [_to_call(block) for block in blocks if block["type"] == "tool_use"]
        if calls:
            messages.append({"role": role, "content": text or None, "tool_calls": calls})
        elif text or not any(block["type"] == "tool_result" for block in blocks):
            messages.append({"role": role, "content": text})
    return messages


def to_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": dict(tool["input_schema"]),
            },
        }
        for tool in tools
    ]


def plain_text(content: Any) -> str:
    """The text of a string, of content parts, or of None."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")


def arguments_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one of OpenAI's `tool_calls`, given as JSON text or as an object."""
    arguments = function.get("arguments") or "{}"
    try:
        parsed = read_json(arguments)[0] if isinstance(arguments, str) else arguments
    except Unreadable as reason:
        raise UserError(f"the arguments of a call of {function.get('name')!r}: {reason}") from None
    if not isinstance(parsed, Mapping):
        raise UserError(
            f"the arguments of a call of {function.get('name')!r} are not a JSON object: {parsed!r}"
        )
    return dict(parsed)


def _blocks(message: Mapping[str, Any]) -> list[Block]:
    text = plain_text(message.get("content"))
    blocks: list[Block] = [{"type": "text", "text": text}] if text else []
    for call in message.get("tool_calls") or ():
        function = call["function"]
        use = {"id": call["id"], "name": function["name"], "input": arguments_of(function)}
        blocks.append({"type": "tool_use", **use})
    return blocks


def _to_call(block: Mapping[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(block["input"], ensure_ascii=False)
    function = {"name": block["name"], "arguments": arguments}
    return {"id": block["id"], "type": "function", "function": function}
