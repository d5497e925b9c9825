"""Whatever is sent: an answer of 4xx in the protocol's own form that says what is wrong; never 500."""

from __future__ import annotations

import json
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .conftest import Served
from .taught import ADD

pytestmark = pytest.mark.xdist_group("serve")

CHAT, TEXT, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
# path, what to change in a good body, status, what the message says
WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    (CHAT, {"model": "other"}, 404, "'other' does not exist here; 'taught' does"),
    (CHAT, {"model": 5}, 400, "model: Input should be a valid string"),
    (CHAT, {"messages": []}, 400, "messages: List should have at least 1 item"),
    (CHAT, {"messages": "hello"}, 400, "messages: Input should be a valid list"),
    (CHAT, {"messages": [{"role": "robot", "content": ""}]}, 400, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "a message of the user's needs content"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "leaves no room in a context"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]}]
     }, 400, "messages[0].content[1].type: Input should be 'text', found 'image_url'"),
    (CHAT, {"n": 10**9}, 400, "n: Input should be less than or equal to 128"),
    (CHAT, {"n": 0}, 400, "n: Input should be greater than or equal to 1"),
    (CHAT, {"temperature": "hot"}, 400, "temperature: Input should be a valid number"),
    (CHAT, {"temperature": -1}, 400, "temperature: Input should be greater than or equal to 0"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens: Input should be greater than or equal to 1"),
    (CHAT, {"max_tokens": 1.5}, 400, "max_tokens: Input should be a valid integer"),
    (CHAT, {"stop": [""]}, 400, "stop"),
    (CHAT, {"stop": ["x"] * 100}, 400, "stop"),
    (CHAT, {"top_p": -0.1}, 400, "top_p"),
    (CHAT, {"stream": "yes"}, 400, "stream"),
    (CHAT, {"top_logprobs": 3}, 400, "top_logprobs needs logprobs: true"),
    (CHAT, {"response_format": {"type": "json_schema"}}, 400, "response_format: expected text, json_object"),
    (CHAT, {"frequency_penalty": 1.0}, 400, "frequency_penalty is not supported here"),
    (CHAT, {"tool_choice": "required"}, 400, "a call cannot be forced here"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools[0].function.name"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": []}}}]},
     400, "tools[0].function.parameters.properties"),
    (CHAT, {"messages": [*HELLO, {"role": "assistant", "tool_calls": [
        {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{" * 9999}}]}]},
     400, "the arguments of a call are a JSON object"),
    (TEXT, {"prompt": ""}, 400, "prompt: it is empty"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [10**9]}, 400, "there is no token 1000000000"),
    (TEXT, {"prompt": [-1]}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 100, "n": 2}, 400, "prompt: 1 to 128 answers in all"),
    (TEXT, {"prompt": "x" * 600}, 400, "leaves no room in a context of 512"),
    (TEXT, {"echo": True}, 400, "echo is not supported here"),
    (MESSAGES, {"max_tokens": None}, 400, "max_tokens"),
    (MESSAGES, {"messages": [{"role": "system", "content": "x"}]}, 400, "messages[0].role"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400,
     "messages[0].content[0]: Input tag 'image' found"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400, "thinking is not supported"),
    (MESSAGES, {"tool_choice": {"type": "any"}}, 400, "a call cannot be forced here"),
    (MESSAGES, {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}}, 400,
     "disable_parallel_tool_use is not supported here"),
    (MESSAGES, {"output_format": {"type": "json_schema"}}, 400, "output_format: expected text, json_object"),
    (CHAT, {"parallel_tool_calls": False}, 400, "parallel_tool_calls is not supported here"),
    (CHAT, {"chat_template_kwargs": {"enable_thinking": False}}, 400, "chat_template_kwargs is not"),
    (TEXT, {"repetition_penalty": 1.1}, 400, "repetition_penalty is not supported here"),
    (MESSAGES, {"model": "other"}, 404, "does not exist here"),
]  # fmt: skip


def good(path: str) -> dict[str, Any]:
    asked = {"prompt": "a"} if path == TEXT else {"messages": HELLO}
    return {"model": "taught", "max_tokens": 4, **asked}


def text_of(path: str, body: Any) -> str:
    """The message, where this protocol has it."""
    if path.startswith(MESSAGES):
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return str(body["error"]["message"])


@pytest.mark.parametrize(("path", "change", "status", "message"), WRONG)
def test_a_mistake_is_named(
    served: Served, path: str, change: dict[str, Any], status: int, message: str
) -> None:
    code, body = served.ask("POST", path, {**good(path), **change})
    assert (code, message in text_of(path, body)) == (status, True), body


@pytest.mark.parametrize(("path", "param"), [(CHAT, "messages"), (TEXT, "prompt")])
def test_a_prompt_that_is_too_long_is_named(served: Served, path: str, param: str) -> None:
    long = {"prompt": "x" * 600} if path == TEXT else {"messages": [{"role": "user", "content": "x" * 600}]}
    code, body = served.ask("POST", path, {**good(path), **long})
    assert (code, body["error"]["param"], body["error"]["code"]) == (400, param, "context_length_exceeded")


@pytest.mark.parametrize("path", [CHAT, TEXT, MESSAGES])
@pytest.mark.parametrize("raw", [b"", b"{", b"nonsense", b"[1", b'{"model": "\xff"}', b"[" * 100_000])
def test_a_body_that_is_no_json(served: Served, path: str, raw: bytes) -> None:
    code, body = served.ask("POST", path, raw)
    assert (code, text_of(path, body).startswith("the body is not JSON")) == (400, True)


@pytest.mark.parametrize("raw", [b"null", b"5", b'"x"', b"[]", b"{}"])
def test_json_that_is_no_request(served: Served, raw: bytes) -> None:
    assert served.ask("POST", CHAT, raw)[0] == 400


def test_paths_and_methods_that_are_not_there(served: Served) -> None:
    assert served.ask("POST", "/v1/embeddings", {})[0] == 404
    assert served.ask("GET", CHAT)[0] == 405
    assert served.ask("DELETE", "/v1/models/taught")[0] == 404


def test_a_body_of_many_megabytes_is_turned_away(served: Served) -> None:
    """By what it announces: nothing of it is read."""
    place = urlsplit(served.url)
    with socket.create_connection((place.hostname, place.port)) as caller:
        head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        caller.sendall(f"{head}content-length: {33 << 20}\r\n\r\n".encode())
        answer = caller.makefile("rb").read().decode()
    assert answer.startswith("HTTP/1.1 413 ")
    assert "the body is larger than 32 MiB" in answer


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = {
    CHAT: ["messages", "temperature", "n", "stop", "tools", "tool_choice", "seed", "logprobs"],
    TEXT: ["prompt", "logprobs", "n", "seed", "top_k", "max_tokens"],
    MESSAGES: ["messages", "system", "tools", "tool_choice", "stop_sequences", "top_k", "metadata"],
}  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_anything_in_any_field_is_answered_or_refused(served: Served, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(list(KEYS)))
    change = {data.draw(st.sampled_from(KEYS[path])): data.draw(JSON)}
    code, body = served.ask("POST", path, {**good(path), **change})
    assert code in (200, 400), (change, body)


ODD_MESSAGES: Any = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": st.text(max_size=20)},
        optional={
            "tool_calls": st.lists(
                st.builds(
                    lambda name, arguments: {
                        "id": "x",
                        "type": "function",
                        "function": {"name": name, "arguments": json.dumps(arguments)},
                    },
                    st.sampled_from(["add", "other"]),
                    st.dictionaries(st.text(max_size=4), JSON, max_size=2),
                ),
                max_size=2,
            )
        },
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=ODD_MESSAGES, offered=st.booleans())
def test_any_conversation_is_answered_or_refused(served: Served, messages: Any, offered: bool) -> None:
    body = {**good(CHAT), "messages": messages, "tools": [ADD] if offered else []}
    code, answer = served.ask("POST", CHAT, body)
    assert code in (200, 400), (messages, answer)
