"""Anthropic's messages through its own SDK, from its servers or any that speaks the same protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from toolwright.providers import PROVIDERS, ChatReply, CompletionOptions
from toolwright.providers.blocks import from_messages, from_tools
from toolwright.providers.sdk import SdkChat
from toolwright.tools.call import ToolRequest

FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tools",
    "refusal": "refused",
}


@PROVIDERS.register("anthropic")
class AnthropicChat(SdkChat):
    """The protocol has no seed: samples differ by themselves."""

    brand, own_url = "Anthropic", "https://api.anthropic.com"

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        return self._client.messages.create

    def _question(self, messages: list[dict[str, Any]], how: CompletionOptions) -> dict[str, Any]:
        system, said = from_messages(messages)
        tools = how.get("tools")
        body = self._body(
            {
                "system": system or None,
                "temperature": how["temperature"],
                "stop_sequences": list(how.get("stop") or ()) or None,
                "tools": from_tools(tools) if tools else None,
            }
        )
        return {"max_tokens": how["max_tokens"], "messages": said, "extra_body": body}

    def _reply(self, answer: Any) -> ChatReply:
        read, written = self._usage(answer)
        return ChatReply(
            text="".join(block.text for block in answer.content if block.type == "text"),
            calls=tuple(
                ToolRequest(block.name, dict(block.input), id=block.id)
                for block in answer.content
                if block.type == "tool_use"
            ),
            prompt_tokens=read,
            completion_tokens=written,
            finish=FINISH.get(answer.stop_reason or "end_turn", "stop"),
        )

    def _usage(self, answer: Any) -> tuple[int, int]:
        usage = answer.usage
        # What was read from the provider's own cache, or written to it, is reported beside the rest.
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        return int(usage.input_tokens) + cached, int(usage.output_tokens)
