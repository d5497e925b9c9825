"""Bodies: as many values as can be parsed without keeping others waiting, however they are written."""

from __future__ import annotations

import asyncio
import json

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.web import body
from toolwright.web.body import BodyTooLarge, parse_json


def parsed(raw: bytes) -> object:
    return asyncio.run(parse_json(bytearray(raw)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_SLICE", 7)
    monkeypatch.setattr(body, "MOST_VALUES", 20)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("item", ["[]", "{}", "1", '"a"', '{"a":1}', "[[]]", '"\\""', '"\\\\"'])
def test_too_many_values_are_refused_before_they_are_parsed(item: str) -> None:
    assert parsed(f"[{','.join([item] * 4)}]".encode()) == json.loads(f"[{','.join([item] * 4)}]")
    with pytest.raises(BodyTooLarge, match="more than 20 values"):
        parsed(f"[{','.join([item] * 50)}]".encode())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", ["[,{" * 100, '\\"[,' * 100, "\\\\" * 101, "\\" * 33 + '"[[['])
def test_a_string_counts_as_one_value(text: str) -> None:
    raw = orjson.dumps({"stdin": text, "code": text})
    assert parsed(raw) == {"stdin": text, "code": text}


@given(st.lists(st.text(alphabet='\\"[{,a', max_size=30), max_size=9))
@settings(deadline=None)
def test_strings_of_any_kind_are_counted_as_what_they_are(texts: list[str]) -> None:
    before = body._SLICE, body.MOST_VALUES
    body._SLICE, body.MOST_VALUES = 5, 2 * len(texts) + 1
    try:
        assert parsed(orjson.dumps(texts)) == texts
    finally:
        body._SLICE, body.MOST_VALUES = before


def test_a_body_that_is_not_json_gets_an_error_that_says_so() -> None:
    for raw in (b"", b"[" * 2_000, b'"' * 3_000_000, b"\xff" * 2_000_000):
        with pytest.raises((orjson.JSONDecodeError, BodyTooLarge)):
            parsed(raw)
