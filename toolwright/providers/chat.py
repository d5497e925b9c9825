"""The interface of a chat model: its messages, its reply, and the error that is worth another try."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Protocol, TypedDict

from toolwright.failures import InfrastructureFailure
from toolwright.registry import Registry
from toolwright.tools.call import Malformed, ToolRequest

# In OpenAI's form, tool calls and tool results included. Other providers translate.
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]

TEMPLATE_TOKENS = 16  # that a chat template may put around a message


@dataclass(frozen=True)
class ChatReply:
    """A reply of a chat model, with its usage."""

    text: str
    calls: tuple[ToolRequest | Malformed, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None  # US dollars when it was paid for; None if the model has no price
    seconds: float = 0.0
    cached: bool = False  # read from disk: nothing was paid this time
    finish: str = "stop"  # stop, length, tools or refused
    log_prob: float | None = None  # of the whole reply, if `fields` request it: {logprobs: true}

    def with_usage_of(self, earlier: ChatReply) -> ChatReply:
        """Add the tokens and the cost of an earlier try."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens + earlier.prompt_tokens,
            completion_tokens=self.completion_tokens + earlier.completion_tokens,
            cost=None if self.cost is None else self.cost + (earlier.cost or 0.0),
        )


class TransientError(InfrastructureFailure):
    """An error that another try may not meet. `usage` counts the tokens that the provider reports all the
    same, for a reply that was generated and cannot be read."""

    def __init__(
        self, message: str, retry_after_s: float | None = None, *, usage: ChatReply | None = None
    ) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s  # as the server requests it
        self.usage = usage or ChatReply("")


class CompletionOptions(TypedDict):
    """The keyword arguments of `complete`, for wrappers that pass them on."""

    temperature: float
    max_tokens: int
    seed: NotRequired[int | None]
    stop: NotRequired[Sequence[str]]
    tools: NotRequired[Tools | None]


class ChatModel(Protocol):
    """A model that continues a conversation. `name` is for people and for the ledger."""

    name: str

    async def complete(
        self,
        messages: list[dict[str, Any]],
        *,
        temperature: float,
        max_tokens: int,
        seed: int | None = None,
        stop: Sequence[str] = (),
        tools: Tools | None = None,
    ) -> ChatReply:
        """Generate the next turn. `seed` tells repeated samples of one prompt apart, also if the provider
        cannot be seeded: the cache keeps a reply for each."""
        ...


class ChatWrapper:
    """A chat model in front of another one. Each subclass has its own `complete`."""

    def __init__(self, inner: ChatModel) -> None:
        self.inner = inner
        self.name = inner.name

    async def close(self) -> None:
        await close(self.inner)


async def close(chat: ChatModel) -> None:
    """Release what a chat model holds open, if anything."""
    end = getattr(chat, "close", None)
    if end is not None:
        await end()


def max_prompt_tokens(messages: list[dict[str, Any]], tools: Tools | None) -> int:
    """Bound the tokens of a prompt before anybody has counted them. No token is shorter than a byte, so
    bytes are a bound for every tokenizer."""
    text = json.dumps([messages, list(tools or ())], ensure_ascii=False, default=str)
    return len(text.encode("utf-8", "replace")) + TEMPLATE_TOKENS * (len(messages) + 1)


# A provider is called with its `ChatSettings`. It raises a UserError at once if it cannot work.
PROVIDERS: Registry[Callable[..., ChatModel]] = Registry("provider", "toolwright.providers.builtin")
