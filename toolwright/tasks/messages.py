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
