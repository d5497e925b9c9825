"""What a policy is told of its tools before it starts: by its chat template, or by the system's message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.agents.formats import CallFormat, Schemas
from toolwright.models.tokenizer import Tokenizer

Message = Mapping[str, Any]


@dataclass(frozen=True)
class Briefing:
    messages: Sequence[Message]
    tools: Schemas | None  # for the chat template


def brief(
    prompt: Sequence[Message],
    schemas: Schemas,
    call_format: CallFormat,
    tokenizer: Tokenizer,
    said: str | None,
) -> Briefing:
    """The prompt with the tools in it. `said` goes before the format's own words; "" says nothing."""
    messages = list(prompt)
    if not schemas:
        return Briefing(messages, None)
    # A template teaches its own way to write calls, which an inline format is not.
    if said is None and not call_format.inline and tokenizer.chat.takes_tools:
        return Briefing(messages, schemas)
    words = call_format.instructions(schemas) if said is None else said
    return Briefing(_with_words(messages, words, tokenizer) if words else messages, None)


def _with_words(messages: list[Message], words: str, tokenizer: Tokenizer) -> list[Message]:
    role = "system" if tokenizer.chat.takes_system else "user"
    if messages and messages[0]["role"] == role and isinstance(messages[0].get("content"), str):
        first = messages[0]
        joined = [first["content"], words] if role == "system" else [words, first["content"]]
        return [{**first, "content": "\n\n".join(joined)}, *messages[1:]]
    return [{"role": role, "content": words}, *messages]
