"""OpenAI's chat completions through its own SDK, from its servers or any that speaks the same protocol."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from toolwright.agents.formats.arguments import call_of
from toolwright.failures import UserError
from toolwright.providers import PROVIDERS, Reply, Tools
from toolwright.providers.failures import Passing, sorted_out
from toolwright.providers.settings import Settings
from toolwright.tools.call import Call, Malformed

KEY = "OPENAI_API_KEY"
OWN_URL = "https://api.openai.com/v1"
FINISH = {"stop": "stop", "length": "length", "tool_calls": "tools", "content_filter": "refused"}


@PROVIDERS.register("openai")
class OpenAIChat:
    def __init__(self, settings: Settings) -> None:
        self.name, self.fields = settings.model, settings.fields
        self._sdk = _imported()
        # The SDK would take another address from the environment without a word.
        url = settings.base_url or OWN_URL
        self._who = f"{settings.model} at {url}"
        # Their newer models refuse the old name of the field, many other servers do not know the new one.
        self._limit = "max_tokens" if settings.base_url else "max_completion_tokens"
        self._client = self._sdk.AsyncOpenAI(
            api_key=settings.key(KEY), base_url=url, timeout=settings.timeout_s, max_retries=0
        )

    @staticmethod
    def check(settings: Settings) -> None:
        _imported()
        settings.key(KEY)

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
        asked = {
            "temperature": temperature,
            self._limit: max_tokens,
            "seed": seed,
            "stop": list(stop) or None,
            "tools": list(tools) if tools else None,
            **self.fields,
        }
        body = {key: value for key, value in asked.items() if value is not None}
        started = time.monotonic()
        try:
            answer = await self._client.chat.completions.create(
                model=self.name, messages=messages, extra_body=body
            )
        except self._sdk.OpenAIError as error:
            raise sorted_out(error, self._sdk, self._who) from error
        return self._reply(answer, time.monotonic() - started)

    def _reply(self, answer: Any, seconds: float) -> Reply:
        if not answer.choices or answer.usage is None:
            raise Passing(f"{self._who} answered without a choice or without its usage")
        choice = answer.choices[0]
        calls = tuple(_call(one) for one in choice.message.tool_calls or ())
        finish = FINISH.get(choice.finish_reason or "stop", "stop")
        return Reply(
            text=choice.message.content or choice.message.refusal or "",
            calls=calls,
            prompt_tokens=answer.usage.prompt_tokens,
            completion_tokens=answer.usage.completion_tokens,
            seconds=seconds,
            finish="refused" if choice.message.refusal else finish,
            log_prob=_log_prob(choice),
        )

    async def close(self) -> None:
        await self._client.close()


def _log_prob(choice: Any) -> float | None:
    tokens = getattr(choice.logprobs, "content", None)
    return None if tokens is None else math.fsum(token.logprob for token in tokens)


def _call(one: Any) -> Call | Malformed:
    function = getattr(one, "function", None)
    if function is None:
        return Malformed(f"a call of type {one.type!r} was not offered")
    return call_of({"name": function.name, "arguments": function.arguments or "{}", "id": one.id})


def _imported() -> ModuleType:
    try:
        import openai
    except ImportError:
        raise UserError("provider openai needs its SDK: pip install openai") from None
    return openai
