"""Anthropic's own SDK against a real server: what it reads back is what the model said."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import orjson
import pytest

from toolwright.models.tokenizer import Tokenizer
from toolwright.providers.blocks import from_tools
from toolwright.providers.local import ParsedCompletion
from toolwright.serve.anthropic import _blocks
from toolwright.tools.call import ToolRequest

from .conftest import Served
from .taught import ADD, ASKED

pytestmark = pytest.mark.xdist_group("serve")
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(served: Served) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0)


def test_a_message_is_answered_with_its_usage(client: anthropic.Anthropic, served: Served) -> None:
    answer = client.messages.create(
        model=served.name, max_tokens=40, messages=HELLO, system="", extra_body=GREEDY
    )
    assert [(block.type, block.text) for block in answer.content] == [("text", "hello, world")]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert answer.usage.input_tokens == len(Tokenizer.load(served.folder).opening(HELLO).tokens)
    assert answer.usage.output_tokens == len("hello, world") + 1


def test_the_sdks_own_stream_puts_it_together(client: anthropic.Anthropic, served: Served) -> None:
    with client.messages.stream(
        model=served.name, max_tokens=40, messages=HELLO, extra_body=GREEDY
    ) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 8
    assert "".join(pieces) == "hello, world"
    assert (final.stop_reason, final.usage.output_tokens) == ("end_turn", len("hello, world") + 1)
    assert final.usage.input_tokens > 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_used_answered_and_spoken_of(
    client: anthropic.Anthropic, served: Served, stream: bool
) -> None:
    how: dict[str, Any] = {
        "model": served.name, "max_tokens": 80, "tools": from_tools([ADD]), "extra_body": GREEDY,
    }  # fmt: skip
    if stream:
        with client.messages.stream(messages=[ASKED], **how) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(messages=[ASKED], **how)
    text, use = answer.content
    assert (text.type, text.text, answer.stop_reason) == ("text", "I add.", "tool_use")
    assert (use.type, use.name, use.input) == ("tool_use", "add", {"a": 2, "b": 3})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "5"}
    conversation = [
        ASKED,
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    said = client.messages.create(messages=conversation, **how)
    assert [block.text for block in said.content] == ["It is 5."]


def test_a_stop_sequence_is_named(client: anthropic.Anthropic, served: Served) -> None:
    answer = client.messages.create(
        model=served.name, max_tokens=40, messages=HELLO, stop_sequences=[", "], extra_body=GREEDY
    )
    assert [block.text for block in answer.content] == ["hello"]
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ", ")


def test_a_limit_is_named(client: anthropic.Anthropic, served: Served) -> None:
    answer = client.messages.create(model=served.name, max_tokens=3, messages=HELLO, extra_body=GREEDY)
    assert (answer.content[0].text, answer.stop_reason) == ("hel", "max_tokens")


def test_tokens_are_counted_without_an_answer(client: anthropic.Anthropic, served: Served) -> None:
    bare = client.messages.count_tokens(model=served.name, messages=HELLO)
    assert bare.input_tokens == len(Tokenizer.load(served.folder).opening(HELLO).tokens)
    told = client.messages.count_tokens(model=served.name, messages=HELLO, tools=from_tools([ADD]))
    assert told.input_tokens > bare.input_tokens


def test_the_model_is_listed(client: anthropic.Anthropic, served: Served) -> None:
    assert [model.id for model in client.models.list()] == [served.name]


def test_errors_are_the_sdks(client: anthropic.Anthropic, served: Served) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(model="other", max_tokens=4, messages=HELLO)
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="leaves no room in a context of 512"):
        client.messages.create(
            model=served.name, max_tokens=4, messages=[{"role": "user", "content": "x" * 600}]
        )


def test_a_number_of_any_length_in_a_call_is_written() -> None:
    parsed = ParsedCompletion("", (ToolRequest("add", {"a": 10**30, "b": 3}),), "tools")
    (block,) = json.loads(orjson.dumps(_blocks(parsed)))
    assert block["input"] == {"a": 10**30, "b": 3}
