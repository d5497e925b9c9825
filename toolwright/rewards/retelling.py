"""A conversation told again in the words of another chat template, and cut to what its reader can take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from toolwright.failures import TaskFailure
from toolwright.images import text_of

if TYPE_CHECKING:
    from toolwright.models.chat import ChatTemplates

CutRule = Literal["left", "right", "middle", "fail"]


def retold(messages: Sequence[Mapping[str, Any]], chat: ChatTemplates) -> list[dict[str, Any]]:
    """The messages with roles that the template has: what tools answered may become a user's words, and the
    system's words the beginning of them."""
    told: list[dict[str, Any]] = []
    for message in messages:
        role, text = str(message["role"]), text_of(message.get("content"))
        if (role == "tool" and not chat.takes_tool_messages) or role == "environment":
            role = "user"
        if role == "system" and not chat.takes_system:
            role = "user"
        if told and role == "user" and told[-1]["role"] == "user":
            told[-1]["content"] += f"\n\n{text}"
        else:
            told.append({**message, "role": role, "content": text})
    return told


def cut(tokens: list[int], most: int, rule: CutRule) -> list[int]:
    """At most so many of them; `rule` says where the others are taken away."""
    over = len(tokens) - most
    if over <= 0:
        return tokens
    if rule == "fail":
        raise TaskFailure(f"a conversation of {len(tokens)} tokens is more than max_tokens={most}")
    if rule == "left":
        return tokens[over:]
    if rule == "right":
        return tokens[:most]
    head = (most + 1) // 2
    return tokens[:head] + tokens[head + over :]


def as_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """The conversation as text, for a judge's prompt."""
    return "\n\n".join(f"[{message['role']}]\n{text_of(message.get('content'))}" for message in messages)
