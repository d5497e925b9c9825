"""OpenAI's chat completions through its own SDK, from its servers or any that speaks the same protocol."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from toolwright.agents.formats.arguments import call_of
from toolwright.providers import PROVIDERS, ChatReply, CompletionOptions
from toolwright.providers.sdk import SdkChat
from toolwright.providers.settings import ChatSettings
from toolwright.tools.call import Malformed, ToolRequest

FINISH = {"stop": "stop", "length": "length", "tool_calls": "tools", "content_filter": "refused"}


@PROVIDERS.register("openai")
class OpenAIChat(SdkChat):
    brand, own_url = "OpenAI", "https://api.openai.com/v1"

    def __init__(self, settings: ChatSettings) -> None:
        super().__init__(settings)
        # Their newer models refuse the old name of the field, many other servers do not know the new one.
        self._limit = "max_tokens" if settings.base_url else "max_completion_tokens"

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        return self._client.chat.completions.create

    def _question(self, messages: list[dict[str, Any]], how: CompletionOptions) -> dict[str, Any]:
        body = self._body(
            {
                "temperature": how["temperature"],
                self._limit: how["max_tokens"],
                "seed": how.get("seed"),
                "stop": list(how.get("stop") or ()) or None,
                "tools": list(how.get("tools") or ()) or None,
            }
        )
        return {"messages": messages, "extra_body": body}

    def _reply(self, answer: Any) -> ChatReply:
        choice, (read, written) = answer.choices[0], self._usage(answer)
        finish = FINISH.get(choice.finish_reason or "stop", "stop")
        return ChatReply(
            text=choice.message.content or choice.message.refusal or "",
            calls=tuple(_call(one) for one in choice.message.tool_calls or ()),
            prompt_tokens=read,
            completion_tokens=written,
            finish="refused" if choice.message.refusal else finish,
            log_prob=_log_prob(choice),
        )

    def _usage(self, answer: Any) -> tuple[int, int]:
        return int(answer.usage.prompt_tokens), int(answer.usage.completion_tokens)


def _log_prob(choice: Any) -> float | None:
    tokens = getattr(choice.logprobs, "content", None)
    return None if tokens is None else math.fsum(token.logprob for token in tokens)


def _call(one: Any) -> ToolRequest | Malformed:
    function = getattr(one, "function", None)
    if function is None:
        return Malformed(f"a call of type {one.type!r} was not offered")
    return call_of({"name": function.name, "arguments": function.arguments or "{}", "id": one.id})
