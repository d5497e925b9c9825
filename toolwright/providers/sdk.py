"""A chat model behind its provider's own SDK: how it is opened and called, and what its errors mean."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, Unpack

from toolwright.failures import TaskFailure, UserError
from toolwright.providers.chat import ChatReply, CompletionOptions, TransientError, max_prompt_tokens
from toolwright.providers.settings import ChatSettings

TRANSIENT_STATUSES = (408, 409, 425, 429)  # and every 5xx
BYTES_A_TOKEN = 3  # of a text whose tokens the server does not report: rather too many than too few
REQUEST_STATUSES = (400, 413, 422)  # this request is at fault, and would fail again


class SdkChat:
    """A chat model of OpenAI's or Anthropic's SDK. Their class names differ in the `brand` alone."""

    brand: ClassVar[str]
    own_url: ClassVar[str]

    def __init__(self, settings: ChatSettings) -> None:
        self.name, self.fields = settings.model, settings.fields
        self._sdk = self._import_sdk()
        # Set always: the SDK would silently take another address from the environment.
        url = settings.base_url or self.own_url
        self._endpoint = f"{settings.model} at {url}"
        self._client = getattr(self._sdk, f"Async{self.brand}")(
            api_key=settings.key(self._key_variable()),
            base_url=url,
            timeout=settings.timeout_s,
            max_retries=0,
        )

    @classmethod
    def check(cls, settings: ChatSettings) -> None:
        cls._import_sdk()
        settings.key(cls._key_variable())

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        request, started = self._request(messages, options), time.monotonic()
        try:
            response = await self._create(model=self.name, **request)
        except getattr(self._sdk, f"{self.brand}Error") as error:
            raise classify(error, self._sdk, self._endpoint) from error
        except ValueError as error:  # the SDK passes it on if a server announces JSON and sends none
            raise TransientError(f"{self._endpoint} sent an answer that cannot be read: {error}") from error
        try:
            reply = self._reply(response)
            usage = self._usage_of(response, messages, options, reply)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            # The SDK returns whatever came, be it an HTML page or an object without its fields.
            message = (
                f"{self._endpoint} sent something that is not an answer of {self.brand}'s API: "
                f"{str(response)[:100]!r}"
            )
            raise TransientError(message, usage=self._reported_usage(response)) from error
        return replace(
            reply, prompt_tokens=usage[0], completion_tokens=usage[1], seconds=time.monotonic() - started
        )

    async def close(self) -> None:
        await self._client.close()

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        """The client's method that makes a request."""
        raise NotImplementedError

    def _request(self, messages: list[dict[str, Any]], options: CompletionOptions) -> dict[str, Any]:
        raise NotImplementedError

    def _reply(self, response: Any) -> ChatReply:
        """Read a response, without its usage. May raise whatever a missing field raises."""
        raise NotImplementedError

    def _usage(self, response: Any) -> tuple[int, int]:
        """Tokens of the prompt and of the completion. May raise as `_reply` does."""
        raise NotImplementedError

    def _known_usage(self, response: Any) -> tuple[int, int] | None:
        """The reported usage; None if there is none, or one that cannot be."""
        try:
            prompt, completion = self._usage(response)
        except (AttributeError, TypeError, ValueError):
            return None
        return None if min(prompt, completion) < 0 else (prompt, completion)

    def _usage_of(
        self, response: Any, messages: list[dict[str, Any]], options: CompletionOptions, reply: ChatReply
    ) -> tuple[int, int]:
        """The usage of a reply: as reported, or else an estimate by its length."""
        known = self._known_usage(response)
        if known is not None:
            return known
        if not reply.text and not reply.calls:
            raise ValueError("a reply without text, calls and usage")
        said = len(f"{reply.text}{''.join(map(str, reply.calls))}".encode("utf-8", "replace"))
        prompt = max_prompt_tokens(messages, options.get("tools")) // BYTES_A_TOKEN
        return prompt, min(said // BYTES_A_TOKEN + 1, options["max_tokens"])

    def _reported_usage(self, response: Any) -> ChatReply:
        """The usage of a response that cannot be read otherwise."""
        prompt, completion = self._known_usage(response) or (0, 0)
        return ChatReply("", prompt_tokens=prompt, completion_tokens=completion)

    def _body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are set, and the user's own. Sent as a plain body: versions of the SDKs differ in
        which fields have a parameter."""
        return {key: value for key, value in {**fields, **self.fields}.items() if value is not None}

    @classmethod
    def _key_variable(cls) -> str:
        return f"{cls.brand.upper()}_API_KEY"

    @classmethod
    def _import_sdk(cls) -> ModuleType:
        name = cls.brand.lower()
        try:
            return importlib.import_module(name)
        except ImportError:
            raise UserError(f"provider {name} needs its SDK: pip install {name}") from None


def classify(error: Exception, sdk: Any, endpoint: str) -> Exception:
    """Turn an exception of either SDK into one of ours; the SDKs use the same class names."""
    if isinstance(error, sdk.APITimeoutError):
        return TransientError(f"{endpoint}: no answer in time")
    if isinstance(error, sdk.APIConnectionError):
        return TransientError(f"{endpoint}: {error.__cause__ or error}")
    text = str(error)[:300]
    if isinstance(error, sdk.APIStatusError):
        status, message = error.status_code, f"{endpoint} answered {error.status_code}: {text}"
        if status in TRANSIENT_STATUSES or status >= 500:
            return TransientError(message, _seconds(error.response.headers.get("retry-after")))
        if status in REQUEST_STATUSES:
            return TaskFailure(message)
        return UserError(f"{message}; see model, base_url and api_key_env")
    if isinstance(error, sdk.APIError):
        return TransientError(f"{endpoint} sent an answer that cannot be read: {text}")
    return error


def _seconds(header: str | None) -> float | None:
    try:
        return float(header) if header else None
    except ValueError:  # a date: our own backoff applies
        return None
