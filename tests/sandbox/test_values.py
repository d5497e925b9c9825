"""What passes between a solution and its checker, and what the checker makes of anything else."""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict, deque
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.sandbox.values import LARGEST, BrokenChannel, MessageStream, decoded, encoded

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary()
    | st.datetimes().map(lambda moment: moment.replace(fold=0))
    | st.dates()
    | st.times().map(lambda moment: moment.replace(fold=0))
    | st.timedeltas()
    | st.fractions()
    | st.decimals(allow_nan=False)
)
hashable = scalars | st.tuples(scalars, scalars) | st.frozensets(scalars, max_size=3)
plain = st.recursive(
    hashable,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.lists(inner, max_size=4).map(deque),
        st.dictionaries(hashable, inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4).map(OrderedDict),
        st.sets(hashable, max_size=4),
        st.lists(hashable, max_size=4).map(Counter),
    ),
    max_leaves=12,
)
PLAIN = {
    type(None), bool, int, float, complex, str, bytes, bytearray, range, list, tuple, set, frozenset, dict,
    deque, Counter, OrderedDict, datetime, date, time, timedelta, Decimal, Fraction,
}  # fmt: skip


def refused(*told: Any) -> Any:
    raise BrokenChannel(str(told))


def types_in(value: Any) -> set[type]:
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value
    if not isinstance(value, dict | list | tuple | set | frozenset | deque):
        return {type(value)}
    return {type(value)}.union(*map(types_in, inner))


def shape(value: Any) -> Any:
    """The value with its exact types and order, for sets have none."""
    if isinstance(value, set | frozenset):
        return type(value), sorted(map(repr, map(shape, value)))
    if isinstance(value, dict):
        return type(value), [(shape(key), shape(inner)) for key, inner in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [shape(inner) for inner in value]
    return type(value), repr(value)


@given(plain)
def test_plain_values_arrive_as_they_are_with_their_exact_types(value: Any) -> None:
    text = json.dumps(encoded(value, refused))
    assert shape(decoded(text, refused)) == shape(value)


TAGS = ("tuple", "set", "dict", "int", "bytes", "complex", "range", "Counter", "Decimal", "datetime", "x", "")
forged = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(TAGS), inner, max_size=2),
    max_leaves=12,
)


@given(forged.map(json.dumps) | st.text())
def test_any_text_becomes_plain_values_or_is_refused(text: str) -> None:
    try:
        value = decoded(text, refused)
    except BrokenChannel:
        return
    assert types_in(value) <= PLAIN


@pytest.mark.parametrize(
    "text",
    ["", "[" * 100_000, '{"int": "0x' + "f" * 10 + 'g"}', "1" * 10_000, '{"set": [[]]}', '{"a": 1, "b": 2}'],
)
def test_text_that_is_not_a_value_is_refused(text: str) -> None:
    with pytest.raises(BrokenChannel):
        decoded(text, refused)


def test_a_message_is_cut_off_by_its_length_or_by_its_end() -> None:
    reading, writing = os.pipe()
    line = MessageStream(reading)
    MessageStream(writing).send('"whole"')
    assert line.receive() == '"whole"'
    os.write(writing, (LARGEST + 1).to_bytes(4, "little"))
    with pytest.raises(BrokenChannel, match="too long"):
        line.receive()
    os.write(writing, (3).to_bytes(4, "little") + b"\xff\xff\xff")
    with pytest.raises(BrokenChannel, match="not text"):
        line.receive()
    os.write(writing, (9).to_bytes(4, "little") + b"short")
    os.close(writing)
    with pytest.raises(BrokenChannel, match="gone"):
        line.receive()
    with pytest.raises(OverflowError):
        MessageStream(reading).send("x" * (LARGEST + 1))
    os.close(reading)
