"""OpenAI's own SDK against a real server: what it reads back is what the model said."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from tests import tiny
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer

from .conftest import Served
from .taught import ADD, ASKED

pytestmark = pytest.mark.xdist_group("serve")
HELLO: list[Any] = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0)


def test_a_chat_is_answered_with_its_usage(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model=served.name, messages=HELLO, temperature=0)
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("hello, world", "stop")
    assert answer.usage is not None
    tokens = Tokenizer.load(served.folder).opening(HELLO).tokens
    assert answer.usage.prompt_tokens == len(tokens)
    assert answer.usage.completion_tokens == len("hello, world") + 1  # the end of the turn is one
    assert answer.usage.total_tokens == len(tokens) + len("hello, world") + 1


def test_streamed_it_is_the_same_text_and_the_same_usage(client: openai.OpenAI, served: Served) -> None:
    stream = client.chat.completions.create(
        model=served.name, messages=HELLO, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "hello, world"
    assert len(chunks) > 10  # a token each, not all at the end
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == len("hello, world") + 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_answered_and_spoken_of(client: openai.OpenAI, served: Served, stream: bool) -> None:
    how: dict[str, Any] = {"model": served.name, "temperature": 0, "tools": [ADD]}
    if stream:
        chunks = list(client.chat.completions.create(messages=[ASKED], stream=True, **how))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        calls = [call for c in chunks for call in c.choices[0].delta.tool_calls or []]
        assert chunks[-1].choices[0].finish_reason == "tool_calls"
    else:
        choice = client.chat.completions.create(messages=[ASKED], **how).choices[0]
        text, calls = choice.message.content, choice.message.tool_calls
        assert choice.finish_reason == "tool_calls"
    assert text == "I add."
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
        ("add", {"a": 2, "b": 3})
    ]
    function = {"name": calls[0].function.name, "arguments": calls[0].function.arguments}
    called = {"id": calls[0].id, "type": "function", "function": function}
    conversation = [
        ASKED,
        {"role": "assistant", "content": text, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": calls[0].id, "content": "5"},
    ]
    answer = client.chat.completions.create(messages=conversation, **how).choices[0]  # type: ignore[arg-type]
    assert (answer.message.content, answer.finish_reason) == ("It is 5.", "stop")


def test_log_probabilities_are_the_learners(client: openai.OpenAI, served: Served) -> None:
    prompt = "2+3?"
    answer = client.completions.create(
        model=served.name, prompt=prompt, max_tokens=24, temperature=1.0, seed=7, logprobs=0
    )
    said = answer.choices[0].logprobs
    assert said is not None
    assert said.tokens is not None
    assert said.token_logprobs is not None
    tokenizer = Tokenizer.load(served.folder)
    tokens = tokenizer.encode(prompt) + [tokenizer.encode(text)[0] for text in said.tokens]
    decoder = huggingface.load(served.folder, context=512)
    learned = tiny.logits(decoder, tokens).log_softmax(-1)
    expected = [learned[i - 1, tokens[i]].item() for i in range(len(prompt), len(tokens))]
    assert list(said.token_logprobs) == expected


def test_log_probabilities_of_a_chat_come_with_each_token(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {
        "model": served.name, "messages": HELLO, "temperature": 1.0, "seed": 3, "max_tokens": 20,
        "logprobs": True,
    }  # fmt: skip
    whole = client.chat.completions.create(**how).choices[0].logprobs
    assert whole is not None
    streamed = [
        token
        for chunk in client.chat.completions.create(stream=True, **how)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert [(t.token, t.logprob) for t in streamed] == [(t.token, t.logprob) for t in whole.content or []]
    assert len(streamed) > 1


def test_a_stop_string_is_not_part_of_the_answer(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {"model": served.name, "messages": HELLO, "temperature": 0, "stop": [", w", "zz"]}
    choice = client.chat.completions.create(**how).choices[0]
    assert (choice.message.content, choice.finish_reason) == ("hello", "stop")
    chunks = client.chat.completions.create(stream=True, **how)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello"


def test_no_share_of_the_tokens_is_the_likeliest_one(client: openai.OpenAI, served: Served) -> None:
    answer = client.chat.completions.create(model=served.name, messages=HELLO, temperature=2, top_p=0, seed=1)
    assert answer.choices[0].message.content == "hello, world"


def test_a_seed_repeats_and_choices_differ(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {
        "model": served.name, "prompt": "@", "temperature": 1.5, "max_tokens": 20, "n": 4, "seed": 5,
    }  # fmt: skip
    first = [choice.text for choice in client.completions.create(**how).choices]
    again = [choice.text for choice in client.completions.create(**how).choices]
    assert first == again
    assert len(set(first)) > 1
    streamed = [""] * 4
    for chunk in client.completions.create(stream=True, **how):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == first


def test_several_prompts_and_tokens_as_prompts(client: openai.OpenAI, served: Served) -> None:
    texts = ["ab", "2+3"]
    tokenizer = Tokenizer.load(served.folder)
    how: dict[str, Any] = {"model": served.name, "temperature": 0, "max_tokens": 8}
    by_text = client.completions.create(prompt=texts, **how)
    by_token = client.completions.create(prompt=[tokenizer.encode(text) for text in texts], **how)
    assert [c.text for c in by_text.choices] == [c.text for c in by_token.choices]
    assert [c.index for c in by_text.choices] == [0, 1]


def test_many_callers_at_once_get_what_each_would_get_alone(served: Served) -> None:
    async def all_of_them(count: int) -> list[str]:
        async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="none") as client:
            asked = [
                client.completions.create(
                    model=served.name, prompt=f"{i}+{i}", max_tokens=30, seed=i, temperature=1.2
                )
                for i in range(count)
            ]
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    together = asyncio.run(all_of_them(24))
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none")
    for i in (0, 11, 23):
        alone = client.completions.create(
            model=served.name, prompt=f"{i}+{i}", max_tokens=30, seed=i, temperature=1.2
        )
        assert alone.choices[0].text == together[i]


def test_the_model_is_listed_and_found(client: openai.OpenAI, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [served.name]
    assert client.models.retrieve(served.name).id == served.name
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_a_begun_answer_is_gone_on_with(client: openai.OpenAI, served: Served) -> None:
    begun: list[Any] = [*HELLO, {"role": "assistant", "content": "hello, "}]
    answer = client.chat.completions.create(model=served.name, messages=begun, temperature=0)
    assert answer.choices[0].message.content == "world"


def test_the_likeliest_tokens_are_told_beside_each(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {"model": served.name, "messages": HELLO, "temperature": 0, "logprobs": True}
    whole = client.chat.completions.create(top_logprobs=3, **how).choices[0].logprobs
    assert whole is not None
    for token in whole.content or []:
        assert len(token.top_logprobs) == 3
        assert (token.top_logprobs[0].token, token.top_logprobs[0].logprob) == (token.token, token.logprob)
        assert token.top_logprobs[1].logprob >= token.top_logprobs[2].logprob
    asked = Tokenizer.load(served.folder).opening(HELLO).tokens
    text = client.completions.create(
        model=served.name, prompt=asked, logprobs=2, max_tokens=3, temperature=0
    ).choices[0]
    assert text.logprobs is not None
    assert text.text == "hel"
    assert [len(top) for top in text.logprobs.top_logprobs or []] == [2, 2, 2]


def test_tokens_come_as_ids_for_those_who_ask(client: openai.OpenAI, served: Served) -> None:
    how: dict[str, Any] = {
        "model": served.name, "prompt": "ab", "seed": 1, "max_tokens": 12,
        "extra_body": {"return_token_ids": True},
    }  # fmt: skip
    choice = client.completions.create(**how).choices[0].model_dump()
    assert Tokenizer.load(served.folder).decode(choice["token_ids"]) == choice["text"]
    pieces = [chunk.choices[0].model_dump() for chunk in client.completions.create(stream=True, **how)]
    assert [token for piece in pieces for token in piece["token_ids"]] == choice["token_ids"]
