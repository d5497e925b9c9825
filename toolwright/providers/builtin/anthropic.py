"""Anthropic's messages through its own SDK, from its servers or any that speaks the same protocol."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from toolwright.failures import UserError
from toolwright.providers import PROVIDERS, Reply, Tools
from toolwright.providers.blocks import from_messages, from_tools
from toolwright.providers.failures import sorted_out
from toolwright.providers.settings import Settings
from toolwright.tools.call import Call

OWN_URL = "https://api.anthropic.com"
FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tools",
    "refusal": "refused",
}


@PROVIDERS.register("anthropic")
class AnthropicChat:
    """The protocol has no seed: samples differ by themselves."""

    def __init__(self, settings: Settings) -> None:
        self.name, self.fields = settings.model, settings.fields
        self._sdk = _imported()
        url = settings.base_url or OWN_URL
        self._who = f"{settings.model} at {url}"
        self._client = self._sdk.AsyncAnthropic(
            api_key=settings.key("ANTHROPIC_API_KEY"), base_url=url, timeout=settings.timeout_s, max_retries=0
        )

    async def complete(
        self,
        messages: list[dict[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        tools: Tools | None = None,
    ) -> Reply:
        system, said = from_messages(messages)
        asked = {
            "system": system or None,
            "temperature": temperature,
            "stop_sequences": list(stop) or None,
            "tools": from_tools(tools) if tools else None,
            **self.fields,
        }
        # Not every version of the SDK has all of these as parameters; the protocol has them.
        body = {key: value for key, value in asked.items() if value is not None}
        started = time.monotonic()
        try:
            answer = await self._client.messages.create(
                model=self.name, max_tokens=max_tokens, messages=said, extra_body=body
            )
        except self._sdk.AnthropicError as error:
            raise sorted_out(error, self._sdk, self._who) from error
        return _reply(answer, time.monotonic() - started)

    async def close(self) -> None:
        await self._client.close()


def _reply(answer: Any, seconds: float) -> Reply:
    usage = answer.usage
    # What was read from the provider's own cache, or written to it, is reported beside the rest.
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return Reply(
        text="".join(block.text for block in answer.content if block.type == "text"),
        calls=tuple(
            Call(block.name, dict(block.input), id=block.id)
            for block in answer.content
            if block.type == "tool_use"
        ),
        prompt_tokens=usage.input_tokens + cached,
        completion_tokens=usage.output_tokens,
        seconds=seconds,
        finish=FINISH.get(answer.stop_reason or "end_turn", "stop"),
    )


def _imported() -> ModuleType:
    try:
        import anthropic
    except ImportError:
        raise UserError("provider anthropic needs its SDK: pip install 'toolwright[providers]'") from None
    return anthropic
