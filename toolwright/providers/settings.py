"""The settings of a chat model: which one, where it is, what it costs, and its rate limits."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from toolwright.config.block import Block
from toolwright.config.names import Registered
from toolwright.failures import UserError
from toolwright.providers import prices


class Price(Block):
    """Dollars for a million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat


class ProviderLimits(Block):
    """Rate limits of a provider; calls beyond them wait."""

    concurrency: PositiveInt = Field(default=16, description="calls at the same time")
    requests_a_minute: PositiveFloat | None = Field(default=None, description="null: no limit")
    tokens_a_minute: PositiveFloat | None = Field(
        default=None, description="of prompts and replies together; null: no limit"
    )


class ChatSettings(Block):
    """A chat model, as a configuration describes it."""

    provider: Annotated[str, Registered("provider", "toolwright.providers.builtin")] = Field(
        default="openai", description="openai, anthropic, engine, or path.py:name"
    )
    model: str = Field(description="as the provider calls it; for `engine` a Hugging Face folder")
    base_url: str | None = Field(
        default=None, description="another server that speaks the provider's protocol"
    )
    api_key_env: str | None = Field(
        default=None,
        description="the variable with the API key; null: the provider's usual one, or none for a base_url",
    )
    price: Price | None = Field(
        default=None, description="dollars for a million tokens, or 0; null: as in the price table"
    )
    limits: ProviderLimits = ProviderLimits()
    timeout_s: PositiveFloat = Field(default=120.0, description="the time limit of one try")
    retries: NonNegativeInt = Field(default=5, description="further tries after a transient error")
    fields: dict[str, Any] = Field(
        default={}, description="further fields of a request; null removes one that is sent by default"
    )
    context: PositiveInt = Field(
        default=2048, description="engine: the longest conversation in tokens, within the model's own limit"
    )
    slots: PositiveInt = Field(default=32, description="engine: replies generated side by side")

    @field_validator("price", mode="before")
    @classmethod
    def _one_number_for_both(cls, value: Any) -> Any:
        return {"input": value, "output": value} if isinstance(value, int | float) else value

    def key(self, usual: str) -> str:
        """Read the API key. The provider's own key is never sent to another server by default."""
        variable = self.api_key_env or (None if self.base_url else usual)
        if variable is None:
            return "none"
        key = os.environ.get(variable)
        if not key:
            raise UserError(
                f"the environment has no {variable}, which {self.model} of {self.provider} needs; set it, or "
                "name another variable with api_key_env"
            )
        return key

    def price_of_tokens(self) -> Price:
        """The price set here, or else the table's. An unknown price is an error, never taken as 0."""
        if self.price is not None:
            return self.price
        if self.provider == "engine":
            return Price(input=0.0, output=0.0)
        # Another server has its own prices.
        known = prices.known(self.provider, self.model) if self.base_url is None else None
        if known is None:
            where = f" at {self.base_url}" if self.base_url else ""
            raise UserError(
                f"no price is known for {self.model!r} of {self.provider}{where}: give it in dollars for a "
                "million tokens, `price: {input: 2.5, output: 10}`, or `price: 0` for a model of your own"
            )
        return Price(input=known[0], output=known[1])

    def identity(self) -> dict[str, Any]:
        """The settings that distinguish this model's replies in the cache."""
        return {
            "provider": self.provider,
            "model": self.model,
            "base_url": self.base_url,
            "fields": self.fields,
            "context": self.context,
        }
