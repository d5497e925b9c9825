"""Chat messages in a column of a row, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolwright.failures import UserError
from toolwright.images import parts_of

ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_of(
    value: Any, where: str, *, column: str = "prompt", said_by: str = "user", folder: Path | None = None
) -> list[dict[str, Any]]:
    """The messages of a column. Plain text is one message, said by `said_by`. `folder`: where images lie that
    are named by relative paths."""
    if isinstance(value, str):
        return [{"role": said_by, "content": value}]
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else type(value).__name__
        raise UserError(f"{where}: `{column}` must be a string or a list of chat messages, found {found}")
    messages = []
    for number, message in enumerate(value, 1):
        which = f"{where}: message {number} of `{column}`"
        if not isinstance(message, dict):
            raise UserError(
                f"{which} must be an object with role and content, found {type(message).__name__}"
            )
        # A Parquet column gives every message the keys of all of them, most of them null.
        message = {key: value for key, value in message.items() if value is not None}
        if message.get("role") not in ROLES:
            found = repr(message["role"]) if "role" in message else "none"
            raise UserError(f"{which} needs a role, one of {', '.join(ROLES)}; found {found}")
        if isinstance(message.get("content"), list):
            message["content"] = parts_of(message["content"], which, folder=folder)
        elif not isinstance(message.get("content", ""), str):
            raise UserError(f"{which} needs a string as content, found {type(message['content']).__name__}")
        if "content" not in message and not message.get("tool_calls"):
            raise UserError(f"{which} has no content")
        messages.append(message)
    return messages


ASKED, ANSWERED = ("prompt", "question"), ("response", "completion", "answer")


def conversation_of(row: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """The conversation of a row: `messages`, or a prompt and its response, also within `extra_info`."""
    messages = row.get("messages")
    if messages is not None:
        if not isinstance(messages, list) or not all(isinstance(m, dict) and "role" in m for m in messages):
            raise UserError(f"{where}: expected `messages`, a list of chat messages")
        return messages
    inner = row.get("extra_info")
    for holder in (row, inner if isinstance(inner, dict) else {}):
        asked = next((name for name in ASKED if holder.get(name) is not None), None)
        answered = next((name for name in ANSWERED if holder.get(name) is not None), None)
        if asked and answered:
            said = messages_of(holder[answered], where, column=answered, said_by="assistant")
            return [*messages_of(holder[asked], where, column=asked), *said]
    raise UserError(
        f"{where}: expected `messages`, a list of chat messages, or `prompt` or `question` with `response`, "
        "`completion` or `answer`"
    )
