"""One address for all attempts: each has its key, and what is asked wrongly is refused in words."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI

from toolwright.agents.attempt import Attempt
from toolwright.engines import Completion
from toolwright.gateway.server import AttemptAddress

from .programs import attempts, is_what_was_sampled, native, one, scripted

GO: list[Any] = [{"role": "user", "content": "go"}]


def client(address: AttemptAddress, key: str = "") -> AsyncOpenAI:
    """With the key in a header."""
    url = address.url.partition("/attempt/")[0]
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key or address.key, max_retries=0)


async def ask(api: AsyncOpenAI, **more: Any) -> str:
    reply = await api.chat.completions.create(model="m", messages=GO, **more)
    return reply.choices[0].message.content or ""


def test_an_unknown_key_is_refused_in_the_form_of_each_protocol() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        with pytest.raises(openai.AuthenticationError, match="does not belong to any attempt"):
            await ask(client(address, "tw-another"))
        url = address.url.partition("/attempt/")[0]
        wrong = AsyncAnthropic(base_url=url, api_key="tw-another", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError, match="does not belong to any attempt") as refused:
            await wrong.messages.create(model="m", max_tokens=4, messages=GO)
        assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
        await ask(client(address))

    one(program)


def test_a_key_ends_with_its_attempt_and_reaches_no_other() -> None:
    seen: dict[int, AttemptAddress] = {}
    ended = asyncio.Event()

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        index = attempt.trajectory.index
        seen[index] = address
        await ask(client(address))
        if index == 0:
            return
        while 0 not in seen or attempt.engine.released.count("g0/0") < 2:  # type: ignore[attr-defined]
            await asyncio.sleep(0.01)
        with pytest.raises(openai.PermissionDeniedError, match="is over"):
            await ask(client(seen[0]))
        ended.set()

    made, engine = attempts(program, count=2)
    assert [t.failure for t in made] == [None, None]
    assert ended.is_set()
    is_what_was_sampled(made, engine)


def test_the_address_of_one_attempt_with_the_key_of_another_is_refused() -> None:
    seen: dict[int, AttemptAddress] = {}

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        seen[index := attempt.trajectory.index] = address
        while len(seen) < 2:
            await asyncio.sleep(0.01)
        mixed = AsyncOpenAI(base_url=f"{address.url}/v1", api_key=seen[1 - index].key, max_retries=0)
        with pytest.raises(openai.PermissionDeniedError, match="but the key to another"):
            await ask(mixed)
        await ask(client(address))

    made, engine = attempts(program, count=2)
    assert [t.failure for t in made] == [None, None]
    assert [t.counts["calls_refused"] for t in made] == [1, 1]
    is_what_was_sampled(made, engine)


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/v1/chat/completions", b"{", 400, "not JSON"),
        ("/v1/chat/completions", b'{"messages": []}', 400, "messages"),
        ("/v1/chat/completions", b'{"messages": [{"role": "king", "content": "go"}]}', 400, "role"),
        ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "go"}], "n": 1000}', 400, "n: "),
        ("/v1/chat/completions", b"[" * 10_000, 400, "depth limit"),
        ("/v1/chat/completions", b"x" * (33 << 20), 413, "larger than 32 MiB"),
        ("/v1/responses", b'{"input": [{"type": "image"}]}', 400, "not supported"),
        ("/v1/reward", b'{"reward": "much"}', 400, "expected a number"),
        ("/v1/reward", b'{"reward": 1}', 400, "expected one of the 0 so far"),
        ("/v1/nothing", b"{}", 404, "nothing at"),
    ],
)
def test_a_malformed_request_is_refused_and_samples_nothing(
    path: str, body: bytes, status: int, words: str
) -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        headers = {"content-type": "application/json"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(address.url + path, data=body, headers=headers) as reply,
        ):
            assert reply.status == status
            assert words in (await reply.json())["error"]["message"]
        assert not attempt.trajectory.segments
        await ask(client(address))

    trajectory, _ = one(program)
    assert trajectory.counts["calls_refused"] == 1


def test_a_connection_dropped_in_the_middle_of_a_stream_leaves_nothing() -> None:
    engine = native(ends=False)

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        stream = await api.chat.completions.create(model="m", messages=GO, stream=True)
        async for _ in stream:
            break
        await stream.close()
        for _ in range(500):
            if not engine.engine.active:  # type: ignore[attr-defined]
                break
            await asyncio.sleep(0.01)
        assert not attempt.trajectory.segments
        await ask(api, max_tokens=4)

    trajectory, _ = one(program, engine=engine, max_tokens=900)
    assert trajectory.turns == 1
    is_what_was_sampled([trajectory], engine)


def test_a_call_that_can_only_be_hinted_at_is_not_refused() -> None:
    engine, tokens = scripted("no call<|im_end|>")

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        tool: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
        text = await ask(client(address), tools=[tool], tool_choice="required", parallel_tool_calls=False)
        assert text == "no call"

    one(program, engine=engine, tokens=tokens, call_format="hermes")


def test_a_prompt_that_is_too_long_is_refused_as_openai_does() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        await ask(api)
        with pytest.raises(openai.BadRequestError) as refused:
            await api.chat.completions.create(
                model="m", messages=[*GO, {"role": "user", "content": "x" * 2000}]
            )
        assert refused.value.code == "context_length_exceeded"

    trajectory, _ = one(program)
    assert trajectory.stop == "tokens"
    assert trajectory.cut


@pytest.mark.parametrize(
    "more",
    [
        {"messages": [{"role": "user", "content": "x" * 4_000_000}]},
        {"messages": GO * 3_000},
        {"messages": GO, "tools": [{"type": "function", "function": {"name": "f" * 60}}] * 5_000},
    ],
)
def test_an_enormous_prompt_is_refused_before_it_is_encoded(more: dict[str, Any]) -> None:
    """To encode it would take this model's tokenizer a minute, in which no other attempt is answered."""

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        api = client(address)
        await ask(api)
        started = time.process_time()
        with pytest.raises(openai.BadRequestError, match="a prompt of at least") as refused:
            await api.chat.completions.create(model="m", **more)
        assert refused.value.code == "context_length_exceeded"
        assert time.process_time() - started < 10

    trajectory, _ = one(program)
    assert (trajectory.stop, trajectory.turns) == ("tokens", 1)


def test_an_answer_that_nobody_waits_for_is_not_learned_from() -> None:
    engine = native(ends=False)
    generate = engine.engine.generate

    async def unfinished(*given: Any, **more: Any) -> Completion:
        """Answer nobody: a fast machine samples 900 tokens before the client has lost its patience."""
        await generate(*given, **more)
        await asyncio.Event().wait()
        raise AssertionError

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        engine.engine.generate = unfinished  # type: ignore[method-assign]
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as session:
            with pytest.raises(TimeoutError):
                await session.post(f"{address.url}/v1/chat/completions", json={"messages": GO})
        engine.engine.generate = generate  # type: ignore[method-assign]
        for _ in range(500):
            if not engine.engine.active:  # type: ignore[attr-defined]
                break
            await asyncio.sleep(0.01)
        assert not attempt.trajectory.segments
        await ask(client(address), max_tokens=4)

    trajectory, _ = one(program, engine=engine, max_tokens=900)
    assert trajectory.turns == 1
    is_what_was_sampled([trajectory], engine)


def test_log_probabilities_and_stop_strings() -> None:
    engine, tokens = scripted("one two three<|im_end|>")

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        reply = await client(address).chat.completions.create(
            model="m", messages=GO, logprobs=True, stop=[" three"]
        )
        assert reply.choices[0].message.content == "one two"
        assert reply.choices[0].logprobs is not None

    trajectory, engine = one(program, engine=engine, tokens=tokens)
    assert trajectory.stop == "stop"
    is_what_was_sampled([trajectory], engine)


def test_the_time_limit_does_not_count_the_wait_for_a_free_place() -> None:
    limit_s = 3.0

    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        if attempt.trajectory.index == 0:
            attempt.restart_limit(None)  # the others wait longer than any attempt may take
            await asyncio.sleep(limit_s + 0.5)
        await ask(client(address), max_tokens=4)

    made, _ = attempts(program, count=3, agent={"concurrency": 1}, timeout_s=limit_s)
    assert [t.failure for t in made if t.failure] == []


@pytest.mark.slow
def test_a_thousand_attempts_at_once() -> None:
    async def program(address: AttemptAddress, attempt: Attempt) -> None:
        async with aiohttp.ClientSession() as session:
            messages: list[Any] = list(GO)
            for _ in range(2):
                body = {"model": "m", "messages": messages}
                async with session.post(f"{address.url}/v1/chat/completions", json=body) as reply:
                    said = (await reply.json())["choices"][0]["message"]
                messages += [{"role": "assistant", "content": said["content"]}, GO[0]]

    made, engine = attempts(program, count=1000, max_tokens=4, agent={"concurrency": 1000}, timeout_s=300)
    assert [t.failure for t in made if t.failure] == []
    is_what_was_sampled(made, engine)
