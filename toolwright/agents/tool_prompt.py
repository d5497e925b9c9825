"""Prompts that describe the tools, through the chat template or in the system message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolwright.agents.formats import CallFormat, Schemas
from toolwright.models.tokenizer import Tokenizer

Message = Mapping[str, Any]
LISTED = "{tools}"  # in the words about tools: what the template or the format says of them


@dataclass(frozen=True)
class ToolPrompt:
    """Messages, and the tools that the chat template will describe."""

    messages: Sequence[Message]
    tools: Schemas | None


def with_tools(
    prompt: Sequence[Message],
    schemas: Schemas,
    call_format: CallFormat,
    tokenizer: Tokenizer,
    instructions: str | None,
) -> ToolPrompt:
    """Add the tools to a prompt. `instructions` replace those of the format; `{tools}` in them stands for the
    format's own. An empty string adds nothing."""
    messages = list(prompt)
    if not schemas:
        return ToolPrompt(messages, None)
    words = LISTED if instructions is None else instructions
    # A template teaches its own way to write calls, which an inline format is not.
    if LISTED in words and not call_format.inline and tokenizer.chat.takes_tools:
        words = words.replace(LISTED, "").strip()
        return ToolPrompt(_with_words(messages, words, tokenizer) if words else messages, schemas)
    words = words.replace(LISTED, call_format.instructions(schemas))
    return ToolPrompt(_with_words(messages, words, tokenizer) if words else messages, None)


def _with_words(messages: list[Message], words: str, tokenizer: Tokenizer) -> list[Message]:
    role = "system" if tokenizer.chat.takes_system else "user"
    if messages and messages[0]["role"] == role and isinstance(messages[0].get("content"), str):
        first = messages[0]
        joined = [first["content"], words] if role == "system" else [words, first["content"]]
        return [{**first, "content": "\n\n".join(joined)}, *messages[1:]]
    return [{"role": role, "content": words}, *messages]
