"""Token prices: a table of published ones, and a wrapper that sets the cost of each reply."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from toolwright.providers.chat import ChatModel, ChatReply, ChatWrapper, CompletionOptions, TransientError

if TYPE_CHECKING:
    from toolwright.providers.settings import Price

# Dollars for a million tokens read and written, as published by the end of 2025. Prices change: `price` in
# the settings overrides this table. Tokens that a provider reads from its own cache are counted at the full
# price, so that a budget errs on the safe side.
TABLE: dict[str, dict[str, tuple[float, float]]] = {
    "openai": {
        "gpt-5": (1.25, 10.0),
        "gpt-5-mini": (0.25, 2.0),
        "gpt-5-nano": (0.05, 0.4),
        "gpt-4.1": (2.0, 8.0),
        "gpt-4.1-mini": (0.4, 1.6),
        "gpt-4.1-nano": (0.1, 0.4),
        "gpt-4o": (2.5, 10.0),
        "gpt-4o-mini": (0.15, 0.6),
        "o3": (2.0, 8.0),
        "o4-mini": (1.1, 4.4),
    },
    "anthropic": {
        "claude-opus-4-5": (5.0, 25.0),
        "claude-opus-4-1": (15.0, 75.0),
        "claude-opus-4": (15.0, 75.0),
        "claude-sonnet-4-5": (3.0, 15.0),
        "claude-sonnet-4": (3.0, 15.0),
        "claude-haiku-4-5": (1.0, 5.0),
        "claude-3-5-haiku": (0.8, 4.0),
    },
}
# A dated release costs what its name costs; any other ending is another model.
_DATE = re.compile(r"-(\d{8}|\d{4}-\d{2}-\d{2}|latest)$")


def known(provider: str, model: str) -> tuple[float, float] | None:
    """Look up dollars for a million tokens in and out; None if the table has no such model."""
    return TABLE.get(provider, {}).get(_DATE.sub("", model))


def cost_of(price: Price, *, prompt_tokens: int, completion_tokens: int) -> float:
    return (max(0, prompt_tokens) * price.input + max(0, completion_tokens) * price.output) / 1e6


class Priced(ChatWrapper):
    """Sets the cost of every reply, and of every error that reports usage."""

    def __init__(self, inner: ChatModel, price: Price) -> None:
        super().__init__(inner)
        self.price = price

    async def complete(
        self, messages: list[dict[str, Any]], **options: Unpack[CompletionOptions]
    ) -> ChatReply:
        try:
            return self._priced(await self.inner.complete(messages, **options))
        except TransientError as error:
            error.usage = self._priced(error.usage)
            raise

    def _priced(self, reply: ChatReply) -> ChatReply:
        tokens = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": reply.completion_tokens}
        return replace(reply, cost=cost_of(self.price, **tokens))
