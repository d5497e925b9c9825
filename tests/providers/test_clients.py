"""Both SDKs as our clients use them: what is sent, what is read back, and what each trouble becomes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.failures import InfrastructureFailure, TaskFailure, UserError
from toolwright.providers import ChatReply, close, open_chat
from toolwright.providers.blocks import from_messages, from_tools, to_messages, to_tools
from toolwright.providers.budget import Amount, SpendingBudget
from toolwright.providers.ledger import total
from toolwright.providers.settings import ChatSettings
from toolwright.tools.call import Malformed, ToolRequest

from .chats import said
from .flaky import Flaky, flaky

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}},
}
OPENAI = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": "hm", "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
            {"id": "2", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}]}}],
    "usage": {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150},
}  # fmt: skip
ANTHROPIC = {
    "id": "m", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
    "stop_sequence": None,
    "content": [{"type": "text", "text": "hm"},
                {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}}],
    "usage": {"input_tokens": 60, "cache_read_input_tokens": 40, "output_tokens": 50},
}  # fmt: skip
GOOD = {"openai": OPENAI, "anthropic": ANTHROPIC}
PROVIDERS = pytest.mark.parametrize("provider", list(GOOD))


def asked(
    provider: str,
    *answers: Any,
    retries: int = 0,
    fields: dict[str, Any] | None = None,
    kept: dict[str, Any] | None = None,
    **how: Any,
) -> tuple[ChatReply | BaseException, Flaky]:
    """`kept`: budget, cache and ledger, where there are any."""

    async def once() -> tuple[ChatReply | BaseException, Flaky]:
        async with flaky(*answers) as server:
            settings = ChatSettings(
                provider=provider,
                model="m",
                base_url=server.url,
                price={"input": 10.0, "output": 100.0},  # type: ignore[arg-type]
                retries=retries,
                timeout_s=120,
                fields=fields or {},
            )
            chat = open_chat(settings, **kept or {})
            question = {"temperature": 0.5, "max_tokens": 20, "messages": said("hi"), **how}
            found = await asyncio.gather(chat.complete(**question), return_exceptions=True)
            await close(chat)
            return found[0], server

    return asyncio.run(once())


@PROVIDERS
def test_a_reply_is_read_and_priced(provider: str) -> None:
    reply, _ = asked(provider, (200, GOOD[provider], {}))
    assert isinstance(reply, ChatReply)
    assert (reply.text, reply.calls[0], reply.finish) == ("hm", ToolRequest("add", {"a": 1}, id="1"), "tools")
    assert (reply.prompt_tokens, reply.completion_tokens) == (100, 50)
    assert reply.cost == pytest.approx((100 * 10 + 50 * 100) / 1e6)
    if provider == "openai":
        assert isinstance(reply.calls[1], Malformed)


def test_openai_is_sent_what_was_asked() -> None:
    _, server = asked("openai", (200, OPENAI, {}), seed=3, stop=["."], tools=[TOOL])
    assert server.bodies[0] == {
        "model": "m", "messages": said("hi"), "temperature": 0.5, "max_tokens": 20, "seed": 3, "stop": ["."],
        "tools": [TOOL],
    }  # fmt: skip
    assert server.headers[0]["authorization"] == "Bearer none"


def test_anthropic_is_sent_what_was_asked() -> None:
    _, server = asked("anthropic", (200, ANTHROPIC, {}), seed=3, stop=["."], tools=[TOOL])
    assert server.bodies[0] == {
        "model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0.5, "max_tokens": 20, "stop_sequences": ["."], "tools": from_tools([TOOL]),
    }  # fmt: skip
    shown = server.headers[0]  # versions of the SDK differ in where
    assert shown.get("x-api-key") == "none" or shown["authorization"] == "Bearer none"


@PROVIDERS
def test_fields_are_added_and_left_out(provider: str) -> None:
    _, server = asked(provider, (200, GOOD[provider], {}), fields={"temperature": None, "top_p": 0.5})
    assert "temperature" not in server.bodies[0]
    assert server.bodies[0]["top_p"] == 0.5


@PROVIDERS
def test_rate_limits_and_server_errors_and_lost_connections_are_tried_again(provider: str) -> None:
    busy = (429, {"error": {"message": "slow down"}}, {"retry-after": "0.01"})
    reply, server = asked(provider, busy, (500, {}, {}), None, (200, GOOD[provider], {}), retries=3)
    assert isinstance(reply, ChatReply), reply
    assert len(server.bodies) == 4


@PROVIDERS
@pytest.mark.parametrize(
    ("status", "kind"), [(400, TaskFailure), (401, UserError), (404, UserError), (413, TaskFailure)]
)
def test_mistakes_of_the_caller_are_not_retried(provider: str, status: int, kind: type[Exception]) -> None:
    body = {"type": "error", "error": {"type": "x", "message": "that will not do"}}
    error, server = asked(provider, (status, body, {}), retries=3)
    assert isinstance(error, kind)
    assert "that will not do" in str(error)
    assert server.url in str(error)
    assert len(server.bodies) == 1


@PROVIDERS
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"<html>welcome</html>", "text/html"),
        (b'{"cut short', "application/json"),
        ([], "application/json"),
        ({}, "application/json"),
        ({"choices": [{}], "content": [{}], "usage": {}}, "application/json"),
        ({"choices": [{"message": {}}], "content": [{"type": "text"}], "usage": {}}, "application/json"),
    ],
)
def test_a_reply_that_is_not_an_answer_is_retried_and_named(provider: str, body: Any, kind: str) -> None:
    strange = (200, body, {"content-type": kind})
    reply, _ = asked(provider, strange, (200, GOOD[provider], {}), retries=1)
    assert isinstance(reply, ChatReply), reply
    error, server = asked(provider, strange)
    assert isinstance(error, InfrastructureFailure)
    assert f"m at {server.url} sent " in str(error)


@PROVIDERS
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": -9000, "completion_tokens": -9000, "input_tokens": -9000, "output_tokens": -9000},
    ],
)
def test_a_reply_without_usage_is_kept_and_counted_by_its_length(provider: str, usage: Any) -> None:
    budget = SpendingBudget()
    answer = {**GOOD[provider], "usage": usage}
    reply, server = asked(provider, (200, answer, {}), retries=3, kept={"budget": budget})
    assert isinstance(reply, ChatReply), reply
    assert reply.text == "hm"
    assert len(server.bodies) == 1
    assert 5 < reply.prompt_tokens < 60
    assert 0 < reply.completion_tokens <= 20
    assert reply.cost is not None
    assert reply.cost > 0
    assert budget.spent == Amount(pytest.approx(reply.cost), reply.prompt_tokens + reply.completion_tokens, 1)


def unreadable(provider: str) -> tuple[int, Any, dict[str, str]]:
    """Written, and paid for: all but what was said."""
    return 200, {**GOOD[provider], "choices": [], "content": None}, {}


@PROVIDERS
def test_a_try_that_was_paid_for_in_vain_is_counted_with_the_next(provider: str, tmp_path: Path) -> None:
    budget, ledger = SpendingBudget(), tmp_path / "ledger.jsonl"
    answers = (unreadable(provider), (500, {}, {}), (200, GOOD[provider], {}))
    reply, _ = asked(provider, *answers, retries=2, kept={"budget": budget, "ledger": ledger})
    assert isinstance(reply, ChatReply), reply
    assert (reply.prompt_tokens, reply.completion_tokens) == (200, 100)
    assert reply.cost == pytest.approx(2 * (100 * 10 + 50 * 100) / 1e6)
    assert budget.spent == Amount(pytest.approx(reply.cost), 300, 3)  # every try is asked for
    paid = total(ledger)[""].paid
    assert (paid.dollars, paid.tokens) == (pytest.approx(reply.cost), 300)


@PROVIDERS
def test_a_call_that_fails_in_the_end_costs_what_is_known_of_it(provider: str, tmp_path: Path) -> None:
    budget, ledger = SpendingBudget(), tmp_path / "ledger.jsonl"
    kept = {"budget": budget, "ledger": ledger}
    error, _ = asked(provider, unreadable(provider), None, retries=1, kept=kept)
    assert isinstance(error, InfrastructureFailure)
    assert budget.spent == Amount(pytest.approx(0.006), 150, 2)
    sums = total(ledger)[""]
    assert (sums.failed, sums.paid.dollars, sums.paid.tokens) == (1, pytest.approx(0.006), 150)


@PROVIDERS
def test_tries_in_vain_do_not_pass_a_budget(provider: str, tmp_path: Path) -> None:
    """The next one is not made, and the failure says why."""
    budget, ledger = SpendingBudget(tokens=600), tmp_path / "ledger.jsonl"
    kept = {"budget": budget, "ledger": ledger}
    error, server = asked(provider, unreadable(provider), retries=20, kept=kept, max_tokens=100)
    assert isinstance(error, InfrastructureFailure), error
    assert "the budget is spent: 450 of 600 tokens" in str(error)
    assert len(server.bodies) == 3
    assert total(ledger)[""].paid.tokens == budget.spent.tokens == 450


def test_a_call_that_cannot_be_written_is_the_callers() -> None:
    """And is not taken for something that the server sent."""
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{"}}
    error, server = asked(
        "anthropic", (200, ANTHROPIC, {}), messages=[{"role": "assistant", "tool_calls": [call]}]
    )
    assert isinstance(error, UserError)
    assert "add" in str(error)
    assert not server.bodies


@PROVIDERS
def test_a_server_that_is_not_there_is_named(provider: str) -> None:
    async def nobody() -> None:
        chat = open_chat(
            ChatSettings(provider=provider, model="m", base_url="http://127.0.0.1:9", price=0, retries=0)  # type: ignore[arg-type]
        )
        with pytest.raises(InfrastructureFailure, match=r"m at http://127.0.0.1:9: .*1 tries"):
            await chat.complete(said("hi"), temperature=0, max_tokens=1)
        await close(chat)

    asyncio.run(nobody())


def test_all_wrappers_together(tmp_path: Path) -> None:
    """Twice the same question: one request, two lines, one of them paid for."""
    budget = SpendingBudget(dollars=1.0)

    async def twice() -> int:
        async with flaky((200, OPENAI, {})) as server:
            settings = ChatSettings(model="m", base_url=server.url, price={"input": 10, "output": 100})  # type: ignore[arg-type]
            for _ in range(2):
                chat = open_chat(settings, budget=budget, cache=tmp_path / "c", ledger=tmp_path / "l.jsonl")
                await chat.complete(said("hi"), temperature=1, max_tokens=60, seed=1)
                await close(chat)
            return len(server.bodies)

    assert asyncio.run(twice()) == 1
    assert budget.spent.calls == 1
    sums = total(tmp_path / "l.jsonl")["m"]
    assert (sums.paid.calls, sums.cached, sums.paid.dollars) == (1, 1, budget.spent.dollars)


TEXT = st.text(min_size=1, max_size=8)
CALLS = st.lists(st.builds(lambda name, n: (name, n), st.sampled_from(["f", "g"]), st.integers()), max_size=2)


@given(system=st.none() | TEXT, turns=st.lists(st.tuples(TEXT, TEXT, CALLS), max_size=4), last=TEXT)
def test_conversations_go_to_blocks_and_back(
    system: str | None, turns: list[tuple[str, str, list[tuple[str, int]]]], last: str
) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    number = 0
    for asked_for, answer, calls in turns:
        messages.append({"role": "user", "content": asked_for})
        made = []
        for name, value in calls:
            number += 1
            function = {"name": name, "arguments": f'{{"x": {value}}}'}
            made.append({"id": f"c{number}", "type": "function", "function": function})
        messages.append({"role": "assistant", "content": answer, **({"tool_calls": made} if made else {})})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in made]
    messages.append({"role": "user", "content": last})
    assert to_messages(*from_messages(messages)) == messages


def test_tools_go_to_blocks_and_back() -> None:
    assert to_tools(from_tools([TOOL])) == [TOOL]
