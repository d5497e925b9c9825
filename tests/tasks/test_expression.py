"""Arithmetic as text: what is an expression, what it is worth, and that nothing is ever run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolwright.tasks.builtin.countdown import multiset
from toolwright.tasks.generated import parse


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [("7", 7, [7]), (" 12*(7-3) ", 48, [12, 7, 3]), ("2-3*4", -10, [2, 3, 4]), ("((5))", 5, [5])],
)
def test_an_expression_has_a_value_and_numbers(text: str, value: int, numbers: list[int]) -> None:
    assert parse(text) == (value, numbers)


NOT_EXPRESSIONS = [
    "3+",
    "()",
    "2**9",
    "-3",
    "+3",
    "8/2",
    "1_0",
    "0x1",
    "1e3",
    "1.5",
    "007",
    "3(4)",
    "2,3",
    "True",
    "٣+٤",
    "__import__('os')",
]


@pytest.mark.parametrize(
    "text", [*NOT_EXPRESSIONS, "", "2 3", "2\n3", "(" * 150, "9" * 201, "1+" * 100 + "1"]
)
def test_anything_else_is_not_an_expression(text: str) -> None:
    assert parse(text) is None


@given(st.text(alphabet="0123456789+-*() ", max_size=220))
def test_parse_never_raises(text: str) -> None:
    parse(text)


@given(count=st.integers(1, 5), largest=st.integers(1, 6))
def test_multisets_are_numbered_without_gap_or_repeat(count: int, largest: int) -> None:
    from itertools import combinations_with_replacement

    every = {tuple(reversed(c)) for c in combinations_with_replacement(range(1, largest + 1), count)}
    found = [tuple(multiset(index, count=count)) for index in range(len(every))]
    assert set(found) == every
