"""What is missing is said before anything is asked: a key, a price, a wrong word."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolwright.failures import UserError
from toolwright.providers import check, open_chat, prices
from toolwright.providers.settings import ChatSettings, Price


@pytest.mark.parametrize("look", [open_chat, check])
def test_a_missing_key_is_named(look: Callable[[ChatSettings], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for provider, variable, model in (
        ("openai", "OPENAI_API_KEY", "gpt-4o-mini"),
        ("anthropic", "ANTHROPIC_API_KEY", "claude-haiku-4-5"),
    ):
        monkeypatch.delenv(variable, raising=False)
        with pytest.raises(UserError, match=f"the environment has no {variable}"):
            look(ChatSettings(provider=provider, model=model))
        with pytest.raises(UserError, match="the environment has no MINE"):
            look(ChatSettings(provider=provider, model=model, api_key_env="MINE"))


def test_the_providers_key_is_not_shown_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "dear")
    assert ChatSettings(model="m").key("OPENAI_API_KEY") == "dear"
    elsewhere = ChatSettings(model="m", base_url="http://localhost:1")
    assert elsewhere.key("OPENAI_API_KEY") == "none"
    named = ChatSettings(model="m", base_url="http://localhost:1", api_key_env="OPENAI_API_KEY")
    assert named.key("OPENAI_API_KEY") == "dear"


def test_an_unknown_price_is_refused_with_what_to_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    for settings in (
        ChatSettings(model="gpt-17"),
        ChatSettings(model="gpt-4o-mini", base_url="http://localhost:1"),
    ):
        with pytest.raises(UserError, match=r"price: \{input: 2.5, output: 10\}.*or `price: 0`"):
            open_chat(settings)
        with pytest.raises(UserError, match="no price is known"):
            check(settings)


def test_a_price_may_be_given_and_nothing_must_be_said() -> None:
    assert ChatSettings(model="m", price=0).price_of_tokens() == Price(input=0, output=0)  # type: ignore[arg-type]
    given = ChatSettings(model="gpt-4o", price={"input": 1, "output": 2})  # type: ignore[arg-type]
    assert given.price_of_tokens() == Price(input=1, output=2)
    assert ChatSettings(provider="engine", model="folder").price_of_tokens() == Price(input=0, output=0)


def test_a_dated_model_costs_what_its_name_costs_and_another_does_not() -> None:
    assert prices.known("openai", "gpt-4o-2024-08-06") == prices.known("openai", "gpt-4o")
    assert prices.known("anthropic", "claude-sonnet-4-5-20250929") == (3.0, 15.0)
    assert prices.known("openai", "gpt-4o-mini") != prices.known("openai", "gpt-4o")
    assert prices.known("openai", "gpt-4o-realtime-preview") is None
    assert prices.known("anthropic", "gpt-4o") is None


def test_words_that_mean_nothing_are_refused() -> None:
    for wrong in ({"modle": "x"}, {"model": "x", "retries": -1}, {"model": "x", "price": -1}, {}):
        with pytest.raises(ValidationError):
            ChatSettings.model_validate(wrong)


def test_an_unknown_provider_is_named() -> None:
    with pytest.raises(UserError, match="unknown provider 'opnai'; known: anthropic, engine, openai"):
        open_chat(ChatSettings(provider="opnai", model="x", price=0))  # type: ignore[arg-type]


def test_a_folder_that_is_no_model_is_reported_without_loading_anything(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a model folder: it has no config.json"):
        check(ChatSettings(provider="engine", model=str(tmp_path)))
