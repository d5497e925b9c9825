"""Arithmetic, quick whatever is asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.tools.builtin.calculator import calculator
from toolwright.tools.offer import ToolError
from toolwright.tools.toolbox import Toolbox

from .conftest import Box

Make = Callable[..., Box]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3 * (4 + 5) ** 2", "243"),
        ("7 / 2", "3.5"),
        ("6 / 2", "3"),
        ("-7 // 2 + 7 % 3", "-3"),
        ("2^10 × 3", "3072"),
        ("sqrt(16) + max(1, 2, 3)", "7"),
        ("round(pi, 4)", "3.1416"),
        ("factorial(20)", "2432902008176640000"),
        ("2 ** 200", str(2**200)),
        ("sum([1, 2, 3.5])", "6.5"),
    ],
)
def test_values_of_expressions(box: Make, expression: str, value: str) -> None:
    assert box({"calculator": {}}).call("calculator", expression=expression).text == value


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "(10**500)**500",
        "factorial(10**9)",
        "comb(10**9, 10**8)",
        "round(5, -10**9)",
        "1/0",
        "1e308*10",
        "(-8)**0.5",
        "__import__('os').system('true')",
        "().__class__",
        "'a' * 10**9",
        "[1] * 10**9",
        "lambda: 1",
        "2 +",
        "x",
        "(" * 900,
        "-" * 900 + "1",
        "1" * 100_000,
        "\0",
        "",
    ],
)
def test_an_expression_that_cannot_be_computed_is_an_error_at_once(box: Make, expression: str) -> None:
    made = box({"calculator": {}})
    began = time.process_time()
    answer = made.call("calculator", expression=expression)
    assert time.process_time() - began < 1
    assert answer.trouble == "raised" or expression.startswith("-")
    assert len(answer.text) < 500


PIECES = st.sampled_from(
    [*"0123456789()+-*/%,. ", "**", "//", "1e300", "sqrt(", "factorial(", "max(", "[", "]"]
)


@given(st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=40))
@settings(max_examples=300)
def test_any_text_is_answered(expression: str) -> None:
    with contextlib.suppress(ToolError):
        assert isinstance(asyncio.run(calculator(expression)), str)


def test_a_calculator_needs_no_settings() -> None:
    assert Toolbox({"calculator": {}}).names == ["calculator"]
