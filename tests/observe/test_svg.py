"""Charts: round ticks, well-formed pictures, bounded size."""

from __future__ import annotations

import math
import random
from xml.etree import ElementTree

import pytest

from toolwright.observe import svg
from toolwright.observe.svg import ChartLine, line_chart, nice_ticks, smooth, sparkline, stacked_bars, thin


def parse(picture: str) -> ElementTree.Element:
    return ElementTree.fromstring(picture)


def texts(picture: str, style: str) -> list[str]:
    return [e.text or "" for e in parse(picture).iter("text") if e.get("class") == style]


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 0.9, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (-0.04, 0.05, [-0.04, -0.02, 0, 0.02, 0.04, 0.06]),
        (0.0, 9500.0, [0, 2000, 4000, 6000, 8000, 10000]),
        (0.0, 0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 3e-6, [0, 1e-6, 2e-6, 3e-6]),
    ],
)
def test_ticks_are_round_and_reach_around_the_values(low: float, high: float, ticks: list[float]) -> None:
    assert nice_ticks(low, high) == ticks


def test_ticks_surround_any_range() -> None:
    chance = random.Random(0)
    for _ in range(500):
        low = chance.uniform(-1, 1) * 10 ** chance.uniform(-8, 8)
        high = low + abs(low) * 10 ** chance.uniform(-3, 3)
        ticks = nice_ticks(low, high)
        room = 1e-6 * (high - low)
        assert ticks[0] <= low + room
        assert ticks[-1] >= high - room
        assert 2 <= len(ticks) <= 7


def test_a_chart_is_well_formed_and_labels_are_escaped() -> None:
    picture = line_chart([ChartLine("<b>&", [(0, 0.0), (10, 1.0)], tone=1)])
    notes = [title.text for title in parse(picture).iter("title")]
    assert notes == ["step 0: <b>& 0", "step 10: <b>& 1"]


def test_axes_have_round_labels() -> None:
    picture = line_chart([ChartLine("reward", [(step, step / 100) for step in range(101)], tone=1)])
    assert texts(picture, "y")[:6] == ["0", "0.2", "0.4", "0.6", "0.8", "1"]
    assert texts(picture, "x") == ["0", "20", "40", "60", "80", "100"]


def test_shares_are_in_per_cent() -> None:
    picture = line_chart([ChartLine("clipped", [(1, 0.01), (2, 0.03)], tone=1)], share=True)
    assert texts(picture, "y")[:4] == ["0 %", "1 %", "2 %", "3 %"]
    assert "clipped 3.0 %" in picture


def test_values_far_apart_take_a_log_axis_where_it_may() -> None:
    points = [(step, 1e-4) for step in range(1, 20)] + [(20, 5.0)]
    assert texts(line_chart([ChartLine("kl", points, tone=1)], log=True), "y")[-1] == "log"
    assert "log" not in texts(line_chart([ChartLine("kl", points, tone=1)]), "y")
    assert "log" not in texts(line_chart([ChartLine("kl", [*points, (21, 0.0)], tone=1)], log=True), "y")


@pytest.mark.parametrize(
    "points", [[(3, 0.5)], [(1, 0.0), (2, 0.0)], [(1, -2.0), (2, -1.0)], [(5, 1e12), (6, 0.0)]]
)
def test_few_equal_negative_or_huge_values_can_be_drawn(points: list[tuple[int, float]]) -> None:
    for zero in (True, False):
        picture = line_chart([ChartLine("a", points, tone=1)], zero=zero, log=True)
        assert "nan" not in picture
        parse(picture)


def test_everything_is_drawn_inside_the_picture() -> None:
    chance = random.Random(1)
    points = [(step, chance.gauss(0, 1)) for step in range(200)]
    picture = parse(line_chart([ChartLine("a", points, tone=1)], span=(0, 250)))
    for line in picture.iter("polyline"):
        for pair in line.get("points", "").split():
            x, y = map(float, pair.split(","))
            assert svg.LEFT <= x <= svg.RIGHT
            assert svg.TOP <= y <= svg.BOTTOM


def test_a_long_run_makes_no_larger_a_picture() -> None:
    points = [(step, math.sin(step / 1000)) for step in range(50_000)]
    evaluations = points[::100]
    assert (
        len(line_chart([ChartLine("a", points, tone=1), ChartLine("b", evaluations, tone=2, marks=True)]))
        < 60_000
    )
    assert len(stacked_bars([ChartLine("a", points, tone=1)])) < 60_000


def test_thinning_keeps_ends_and_spikes() -> None:
    points = [(step, 0.0) for step in range(10_000)]
    points[4321] = (4321, 9.0)
    kept = thin(points, 100)
    assert len(kept) <= 102
    assert {points[0], points[4321], points[-1]} <= set(kept)


def test_smoothing_keeps_the_steps_and_the_level() -> None:
    points = [(step, 1.0 if step % 2 else 3.0) for step in range(400)]
    smoothed = smooth(points)
    assert [step for step, _ in smoothed] == list(range(400))
    assert all(abs(value - 2.0) < 0.3 for _, value in smoothed)


def test_bars_are_stacked_and_say_their_parts() -> None:
    picture = stacked_bars(
        [ChartLine("sample", [(1, 2.0), (2, 2.0)], tone=1), ChartLine("evaluate", [(2, 1.0)], tone=2)],
        unit=" s",
    )
    notes = [title.text for title in parse(picture).iter("title")]
    assert notes == ["step 1: 2 s (sample 2 s)", "step 2: 3 s (sample 2 s, evaluate 1 s)"]
    bars = [e for e in parse(picture).iter("rect") if "bar" in (e.get("class") or "")]
    assert len(bars) == 3


def test_a_sparkline_needs_two_points() -> None:
    assert sparkline([(1, 1.0)]) == ""
    assert parse(sparkline([(1, 1.0), (2, 1.0)])).tag == "svg"
