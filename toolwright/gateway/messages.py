"""Messages by their meaning: whether what a client sends back is what it was given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.agents.formats.thinking import spoken
from toolwright.providers.blocks import arguments_of, plain_text

Call = tuple[str, str]  # a name, and its arguments as JSON with sorted keys


@dataclass(frozen=True)
class MessageKey:
    """A message less what clients may change without changing what it says, such as the ids of calls."""

    role: str
    text: str
    calls: tuple[Call, ...] = ()

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> MessageKey:
        role = "system" if message["role"] == "developer" else message["role"]
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        return cls(
            role,
            plain_text(message.get("content")),
            tuple(call_key(function["name"], arguments_of(function)) for function in calls),
        )

    def means(self, said: MessageKey) -> bool:
        """True if this is certainly what the policy `said`: the same except white space, thoughts that
        were left out, and words beside calls that were left out."""
        if self == said:
            return True
        if (self.role, self.calls) != (said.role, said.calls) or self.role != "assistant":
            return False
        mine, whole, aloud = (_words(text) for text in (self.text, said.text, spoken(said.text)[0]))
        return mine in (whole, aloud) or (bool(self.calls) and not mine)


def call_key(name: str, arguments: Mapping[str, Any]) -> Call:
    return name, json.dumps(arguments, sort_keys=True, ensure_ascii=False)


def tools_key(tools: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(list(tools), sort_keys=True) if tools else ""


def _words(text: str) -> str:
    return " ".join(text.split())
