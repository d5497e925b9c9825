"""Chat models behind one small interface: providers over the network, and our own engine in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, TypedDict, Unpack

from toolwright.registry import Registry
from toolwright.tools.call import Malformed, ToolRequest

if TYPE_CHECKING:
    from toolwright.providers.budget import Spending
    from toolwright.providers.settings import ChatSettings

# As OpenAI has them, calls and answers of tools included; a provider of other habits translates.
Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ChatReply:
    """What a chat model answered, and what that took."""

    text: str
    calls: tuple[ToolRequest | Malformed, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None  # in dollars, when it was paid for; None where nobody has put a price on it
    seconds: float = 0.0
    cached: bool = False  # read from the disk: nothing was paid this time
    finish: str = "stop"  # stop, length, tools or refused
    log_prob: float | None = None  # of the whole answer, where `fields` ask for it: logprobs

    def after(self, lost: ChatReply) -> ChatReply:
        """This one, with what an earlier try took counted in."""
        return replace(
            self,
            prompt_tokens=self.prompt_tokens + lost.prompt_tokens,
            completion_tokens=self.completion_tokens + lost.completion_tokens,
            cost=None if self.cost is None else self.cost + (lost.cost or 0.0),
        )


class ChatModel(Protocol):
    """Whoever answers a conversation. `name` is the model's, for people and for the ledger."""

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
        """One more turn. `seed` tells repeated samples of one question apart, also where a provider cannot
        be seeded: the cache keeps an answer for each."""
        ...


class CompletionOptions(TypedDict):
    """How `complete` is asked, for those who pass a question on."""

    temperature: float
    max_tokens: int
    seed: NotRequired[int | None]
    stop: NotRequired[Sequence[str]]
    tools: NotRequired[Tools | None]


class Wrapper:
    """A chat in front of another one: what it does not change it passes on."""

    def __init__(self, inner: ChatModel) -> None:
        self.inner = inner
        self.name = inner.name

    async def complete(self, messages: list[dict[str, Any]], **how: Unpack[CompletionOptions]) -> ChatReply:
        return await self.inner.complete(messages, **how)

    async def close(self) -> None:
        await close(self.inner)


# A provider is called with its `Settings`; what cannot work is a UserError, before anything is asked.
PROVIDERS: Registry[Callable[..., ChatModel]] = Registry("provider", "toolwright.providers.builtin")


def open_chat(
    settings: ChatSettings,
    *,
    budget: Spending | None = None,
    cache: Path | None = None,
    ledger: Path | None = None,
) -> ChatModel:
    """The model of these settings, with its price, its limits, its retries, and whatever else is given here.

    What is missing is said at once, as `check` says it. It belongs to the event loop in which it is first
    used; `close` ends it.
    """
    from toolwright.providers.prices import Priced
    from toolwright.providers.rates import Limited
    from toolwright.providers.retries import Retrying

    chat: ChatModel = PROVIDERS.get(settings.provider).target(settings)
    chat = Priced(chat, settings.price_of_tokens())
    chat = Limited(chat, settings.limits)
    if budget is not None:  # asked before every try: one that failed may have been paid for
        from toolwright.providers.budget import Budgeted

        chat = Budgeted(chat, budget, price=settings.price_of_tokens())
    chat = Retrying(chat, retries=settings.retries)
    if cache is not None:
        from toolwright.providers.cache import Cached

        chat = Cached(chat, cache, identity=settings.identity())
    if ledger is not None:
        from toolwright.providers.ledger import Recorded

        chat = Recorded(chat, ledger, provider=settings.provider)
    return chat


def check(settings: ChatSettings) -> None:
    """Raises what `open_chat` would: a missing package, key, price or folder. Nothing is opened or loaded."""
    provider = PROVIDERS.get(settings.provider).target
    settings.price_of_tokens()
    own = getattr(provider, "check", None)
    if own is not None:
        own(settings)


async def close(chat: ChatModel) -> None:
    """End what a chat holds open, if it holds anything."""
    end = getattr(chat, "close", None)
    if end is not None:
        await end()
