"""A chat model behind its provider's own SDK: how one is opened, asked and closed, whichever it is."""

from __future__ import annotations

import importlib
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar, Unpack

from toolwright.failures import UserError
from toolwright.providers import ChatReply, CompletionOptions
from toolwright.providers.failures import Passing, sorted_out
from toolwright.providers.settings import ChatSettings


class SdkChat:
    """The two SDKs are made alike: the names of their classes differ in the `brand`."""

    brand: ClassVar[str]
    own_url: ClassVar[str]

    def __init__(self, settings: ChatSettings) -> None:
        self.name, self.fields = settings.model, settings.fields
        self._sdk = self._imported()
        # The SDK would take another address from the environment without a word.
        url = settings.base_url or self.own_url
        self._who = f"{settings.model} at {url}"
        self._client = getattr(self._sdk, f"Async{self.brand}")(
            api_key=settings.key(self._key()), base_url=url, timeout=settings.timeout_s, max_retries=0
        )

    @classmethod
    def check(cls, settings: ChatSettings) -> None:
        cls._imported()
        settings.key(cls._key())

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        question, started = self._question(messages, how), time.monotonic()
        try:
            answer = await self._create(model=self.name, **question)
        except getattr(self._sdk, f"{self.brand}Error") as error:
            raise sorted_out(error, self._sdk, self._who) from error
        except ValueError as error:  # passed on by the SDK where a server announces JSON and sends none
            raise Passing(f"{self._who} sent what cannot be read: {error}") from error
        try:
            reply = self._reply(answer)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            # The SDK hands on whatever came, a page for people or an object without its fields.
            said = str(answer)[:100]
            told = f"{self._who} sent what is no answer of {self.brand}'s: {said!r}"
            raise Passing(told, took=self._known(answer)) from error
        return replace(reply, seconds=time.monotonic() - started)

    async def close(self) -> None:
        await self._client.close()

    @property
    def _create(self) -> Callable[..., Awaitable[Any]]:
        """What of the client is asked."""
        raise NotImplementedError

    def _question(self, messages: list[dict[str, Any]], how: CompletionOptions) -> dict[str, Any]:
        raise NotImplementedError

    def _reply(self, answer: Any) -> ChatReply:
        """May raise whatever reading an answer raises that lacks something."""
        raise NotImplementedError

    def _usage(self, answer: Any) -> tuple[int, int]:
        """Tokens read and written; may raise as well."""
        raise NotImplementedError

    def _known(self, answer: Any) -> ChatReply:
        """What an answer that cannot be read tells of what it took."""
        try:
            read, written = self._usage(answer)
        except (AttributeError, TypeError, ValueError):
            read, written = 0, 0
        return ChatReply("", prompt_tokens=read, completion_tokens=written)

    def _body(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """What is set of these, and the user's own: the SDKs' versions differ in what they have a parameter
        for, the protocol has them all."""
        return {key: value for key, value in {**asked, **self.fields}.items() if value is not None}

    @classmethod
    def _key(cls) -> str:
        return f"{cls.brand.upper()}_API_KEY"

    @classmethod
    def _imported(cls) -> ModuleType:
        name = cls.brand.lower()
        try:
            return importlib.import_module(name)
        except ImportError:
            raise UserError(f"provider {name} needs its SDK: pip install {name}") from None
