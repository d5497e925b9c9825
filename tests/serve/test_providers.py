"""Our own clients, through the official SDKs and in process, all asking one model: the same answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from toolwright.failures import TaskFailure, UserError
from toolwright.providers import ChatModel, ChatReply, close, open_chat
from toolwright.providers.builtin import engine
from toolwright.providers.settings import ChatSettings
from toolwright.tools.call import ToolRequest

from .conftest import Served
from .taught import ADD, ASKED

pytestmark = pytest.mark.xdist_group("serve")
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 80}


def opened(provider: str, served: Served) -> ChatModel:
    if provider == "engine":
        return open_chat(ChatSettings(provider="engine", model=str(served.folder), slots=4))
    url = served.url + ("/v1" if provider == "openai" else "")
    return open_chat(ChatSettings(provider=provider, model=served.name, base_url=url, price=0))  # type: ignore[arg-type]


def answers(provider: str, served: Served, *questions: tuple[list[Any], dict[str, Any]]) -> list[ChatReply]:
    async def all_of_them() -> list[ChatReply]:
        chat = opened(provider, served)
        try:
            return await asyncio.gather(*(chat.complete(messages, **how) for messages, how in questions))
        finally:
            await close(chat)

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("provider", ["openai", "anthropic", "engine"])
def test_a_tool_round_trip(served: Served, provider: str) -> None:
    first = answers(provider, served, ([ASKED], {**GREEDY, "tools": [ADD]}))[0]
    call = first.calls[0]
    assert isinstance(call, ToolRequest)
    assert (first.text, first.finish, call.name, call.arguments) == (
        "I add.",
        "tools",
        "add",
        {"a": 2, "b": 3},
    )
    function = {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    conversation = [
        ASKED,
        {"role": "assistant", "content": first.text,
         "tool_calls": [{"id": call.id or "x", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call.id or "x", "content": "5"},
    ]  # fmt: skip
    second = answers(provider, served, (conversation, {**GREEDY, "tools": [ADD]}))[0]
    assert (second.text, second.finish, second.cost, second.calls) == ("It is 5.", "stop", 0.0, ())


def test_the_same_seed_is_the_same_answer_over_the_wire_and_in_process(served: Served) -> None:
    asked = [
        ([{"role": "user", "content": "x"}], {"temperature": 1.3, "max_tokens": 20, "seed": s})
        for s in range(6)
    ]
    over, inside = (answers(provider, served, *asked) for provider in ("openai", "engine"))
    assert [reply.text for reply in over] == [reply.text for reply in inside]
    assert [(r.prompt_tokens, r.completion_tokens) for r in over] == [
        (r.prompt_tokens, r.completion_tokens) for r in inside
    ]


def test_chat_models_of_one_folder_share_an_engine_until_the_last_is_closed(served: Served) -> None:
    async def both() -> list[ChatReply]:
        first, second = (opened("engine", served) for _ in range(2))
        asked = [{"role": "user", "content": "x"}]
        options: dict[str, Any] = {"temperature": 1.3, "max_tokens": 20, "seed": 3}
        try:
            replies = await asyncio.gather(*(chat.complete(asked, **options) for chat in (first, second)))
            assert len(engine.LOADED) == 1
            await close(first)
            return [*replies, await second.complete(asked, **options)]
        finally:
            await close(second)

    assert len({reply.text for reply in asyncio.run(both())}) == 1
    assert not engine.LOADED


@pytest.mark.parametrize("provider", ["openai", "anthropic", "engine"])
def test_what_is_too_long_is_of_this_task(served: Served, provider: str) -> None:
    with pytest.raises(TaskFailure, match="leaves no room"):
        answers(provider, served, ([{"role": "user", "content": "x" * 600}], GREEDY))


def test_a_model_that_is_not_served_is_the_users(served: Served) -> None:
    async def ask() -> None:
        chat = open_chat(ChatSettings(model="other", base_url=served.url + "/v1", price=0))  # type: ignore[arg-type]
        try:
            await chat.complete([ASKED], **GREEDY)
        finally:
            await close(chat)

    with pytest.raises(UserError, match="'other' does not exist here"):
        asyncio.run(ask())
