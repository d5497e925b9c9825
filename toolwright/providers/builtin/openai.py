"""OpenAI's chat completions through its SDK, at OpenAI or at any server with the same protocol."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from toolwright.agents.formats.arguments import call_of
from toolwright.providers.chat import PROVIDERS, ChatReply, CompletionOptions
from toolwright.providers.sdk import SdkChat
from toolwright.providers.settings import ChatSettings
from toolwright.tools.call import Malformed, ToolRequest

FINISH = {"stop": "stop", "length": "length", "tool_calls": "tools", "content_filter": "refused"}


@PROVIDERS.register("openai")
class OpenAIChat(SdkChat):
    """A chat model behind OpenAI's chat completions."""

    brand, own_url = "OpenAI", "https://api.openai.com/v1"

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__(settings)
        # OpenAI's newer models refuse `max_tokens`; many other servers do not know the new name.
        self._limit = "max_tokens" if settings.base_url else "max_completion_tokens"

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        return self._client.chat.completions.create

    def _request(self, messages: list[dict[str, Any]], options: CompletionOptions) -> dict[str, Any]:
        body = self._body(
            {
                "temperature": options["temperature"],
                self._limit: options["max_tokens"],
                "seed": options.get("seed"),
                "stop": list(options.get("stop") or ()) or None,
                "tools": list(options.get("tools") or ()) or None,
            }
        )
        return {"messages": messages, "extra_body": body}

    def _reply(self, response: Any) -> ChatReply:
        choice = response.choices[0]
        finish = FINISH.get(choice.finish_reason or "stop", "stop")
        return ChatReply(
            text=choice.message.content or choice.message.refusal or "",
            calls=tuple(_call(call) for call in choice.message.tool_calls or ()),
            finish="refused" if choice.message.refusal else finish,
            log_prob=_log_prob(choice),
        )

    def _usage(self, response: Any) -> tuple[int, int]:
        return int(response.usage.prompt_tokens), int(response.usage.completion_tokens)


def _log_prob(choice: Any) -> float | None:
    tokens = getattr(choice.logprobs, "content", None)
    return None if tokens is None else math.fsum(token.logprob for token in tokens)


def _call(call: Any) -> ToolRequest | Malformed:
    function = getattr(call, "function", None)
    if function is None:
        return Malformed(f"a call of type {call.type!r} was not offered")
    return call_of({"name": function.name, "arguments": function.arguments or "{}", "id": call.id})
