"""Anthropic's messages API through its SDK, at Anthropic or at any server with the same protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from toolwright.providers.blocks import from_messages, from_tools
from toolwright.providers.chat import PROVIDERS, ChatReply, CompletionOptions
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
    """A chat model behind Anthropic's messages API, which has no seed: samples differ by themselves."""

    brand, own_url = "Anthropic", "https://api.anthropic.com"

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        return self._client.messages.create

    def _request(self, messages: list[dict[str, Any]], options: CompletionOptions) -> dict[str, Any]:
        system, turns = from_messages(messages)
        tools = options.get("tools")
        body = self._body(
            {
                "system": system or None,
                "temperature": options["temperature"],
                "stop_sequences": list(options.get("stop") or ()) or None,
                "tools": from_tools(tools) if tools else None,
            }
        )
        return {"max_tokens": options["max_tokens"], "messages": turns, "extra_body": body}

    def _reply(self, response: Any) -> ChatReply:
        return ChatReply(
            text="".join(block.text for block in response.content if block.type == "text"),
            calls=tuple(
                ToolRequest(block.name, dict(block.input), id=block.id)
                for block in response.content
                if block.type == "tool_use"
            ),
            finish=FINISH.get(response.stop_reason or "end_turn", "stop"),
        )

    def _usage(self, response: Any) -> tuple[int, int]:
        usage = response.usage
        # Tokens read from the provider's own cache, or written to it, are not part of `input_tokens`.
        cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
        return int(usage.input_tokens) + cached, int(usage.output_tokens)
