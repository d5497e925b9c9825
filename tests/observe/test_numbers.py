"""Numbers for people."""

from __future__ import annotations

import math

import pytest

from toolwright.observe.numbers import compact, duration, percent, rough


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.01234, "0.0123"),
        (4.5678, "4.57"),
        (-789, "-789"),
        (999.7, "1k"),
        (12345, "12.3k"),
        (4_500_000, "4.5M"),
        (2e-5, "2e-5"),
        (1.5e-12, "1.5e-12"),
        (3e13, "3e+13"),
        (math.nan, "-"),
    ],
)
def test_compact(value: float, text: str) -> None:
    assert compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "4 ms"),
        (math.inf, "-"),
        (math.nan, "-"),
        (0.84, "0.84 s"),
        (12.34, "12.3 s"),
        (59.97, "1m 00s"),
        (158, "2m 38s"),
        (3599.6, "1h 00m"),
        (3840, "1h 04m"),
        (86400 * 2 + 3600 * 3, "2d 03h"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_rough_durations_are_whole_seconds() -> None:
    assert [rough(0.2), rough(3.01), rough(61)] == ["0 s", "3 s", "1m 01s"]


def test_percent() -> None:
    assert percent(0.617) == "61.7 %"
