"""Chat models behind one small interface: providers over the network, and our own engine in this process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.providers.chat import PROVIDERS, ChatModel, ChatReply, CompletionOptions, close

if TYPE_CHECKING:
    from toolwright.providers.budget import Spending
    from toolwright.providers.settings import ChatSettings


def open_chat(
    settings: ChatSettings,
    *,
    budget: Spending | None = None,
    cache: Path | None = None,
    ledger: Path | None = None,
) -> ChatModel:
    """Open the model of these settings with its price, rate limits and retries, and with what is given here.

    Raises a UserError if something is missing, as `check` does. The chat model belongs to the event loop in
    which it is first used; `close` ends it.
    """
    from toolwright.providers.budget import Budgeted
    from toolwright.providers.cache import Cached
    from toolwright.providers.ledger import Recorded
    from toolwright.providers.prices import Priced
    from toolwright.providers.rates import RateLimited, Retrying

    chat: ChatModel = PROVIDERS.get(settings.provider).target(settings)
    chat = Priced(chat, settings.price_of_tokens())
    chat = RateLimited(chat, settings.limits)
    if budget is not None:  # below the retries: every try may be paid for
        chat = Budgeted(chat, budget, price=settings.price_of_tokens())
    chat = Retrying(chat, retries=settings.retries)
    if cache is not None:
        chat = Cached(chat, cache, identity=settings.identity())
    if ledger is not None:
        chat = Recorded(chat, ledger, provider=settings.provider)
    return chat


def check(settings: ChatSettings) -> None:
    """Raise what `open_chat` would: a missing package, key, price or folder. Opens and loads nothing."""
    provider = PROVIDERS.get(settings.provider).target
    settings.price_of_tokens()
    own = getattr(provider, "check", None)
    if own is not None:
        own(settings)
