"""Small charts as inline SVG: lines, stacked bars, sparklines. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from toolwright.observe.numbers import compact, percent

Point = tuple[int, float]

# A chart is drawn at the size it has on a phone and in a three-column page: its text is never scaled far.
WIDTH, HEIGHT = 360, 196
LEFT, RIGHT, TOP, BOTTOM = 42, 350, 20, 172
MOST_POINTS = 300
MOST_HOVERS = 80
MOST_BARS = 60
SMOOTH_FROM = 40  # points; fewer are read better as they are


@dataclass(frozen=True)
class ChartLine:
    label: str
    points: Sequence[Point]
    tone: int  # which of the page's colours
    marks: bool = False  # measured now and then: each point is shown, none is smoothed


@dataclass(frozen=True)
class Axis:
    """Values to pixels along y."""

    ticks: list[float]
    log: bool = False
    share: bool = False  # of one, written in per cent

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, low))
        part = min(1.0, max(0.0, (value - low) / (high - low)))
        return BOTTOM - part * (BOTTOM - TOP)

    def label(self, tick: float) -> str:
        return f"{100 * tick:g} %" if self.share else compact(tick)


@dataclass(frozen=True)
class Steps:
    """Steps to pixels along x."""

    low: int
    high: int

    def x(self, step: float) -> float:
        if self.high == self.low:
            return (LEFT + RIGHT) / 2
        return LEFT + (step - self.low) / (self.high - self.low) * (RIGHT - LEFT)

    @property
    def ticks(self) -> list[int]:
        inside = [tick for tick in nice_ticks(self.low, self.high, most=6) if self.low <= tick <= self.high]
        return [int(tick) for tick in inside if tick == int(tick)] or [self.low]


def line_chart(
    lines: Sequence[ChartLine],
    *,
    span: tuple[int, int] | None = None,
    zero: bool = True,
    share: bool = False,
    log: bool = False,
) -> str:
    """Draw lines over steps.

    `span` is the steps of the whole run, so that charts side by side agree. `zero` starts the axis at 0.
    `log` makes it logarithmic if the values differ enough.
    """
    lines = [line for line in lines if line.points]
    values = [value for line in lines for _, value in line.points]
    axis = _axis(values, zero=zero, share=share, log=log)
    every = [step for line in lines for step, _ in line.points]
    steps = Steps(*(span or (min(every), max(every))))
    body = [_line(line, steps, axis) for line in lines] + _hovers(lines, steps, axis)
    return _frame(steps, axis, body, label=", ".join(line.label for line in lines))


def stacked_bars(layers: Sequence[ChartLine], *, unit: str = "") -> str:
    """Draw one bar a step, or one for the mean of several steps if there are many."""
    steps_all = sorted({step for layer in layers for step, _ in layer.points})
    values = [dict(layer.points) for layer in layers]
    count = min(MOST_BARS, len(steps_all))
    cuts = [len(steps_all) * n // count for n in range(count + 1)]
    buckets = [steps_all[a:b] for a, b in pairwise(cuts)]
    means = [[sum(v.get(s, 0.0) for s in bucket) / len(bucket) for v in values] for bucket in buckets]
    axis = Axis(nice_ticks(0.0, max(map(sum, means)) or 1.0))
    pitch = (RIGHT - LEFT) / count
    width = max(1.0, min(pitch * 0.82, 36.0))
    body = []
    for number, (bucket, heights) in enumerate(zip(buckets, means, strict=True)):
        left = LEFT + pitch * (number + 0.5) - width / 2
        base, parts, labels = 0.0, [], []
        for layer, height in zip(layers, heights, strict=True):
            if height <= 0:
                continue
            top, foot = axis.y(base + height), axis.y(base)
            parts.append(_rect(left, top, width, foot - top, f"bar c{layer.tone}"))
            labels.append(f"{layer.label} {compact(height)}{unit}")
            base += height
        head = f"step {bucket[0]}" if len(bucket) == 1 else f"steps {bucket[0]}–{bucket[-1]}"
        whole = f"{head}: {compact(base)}{unit}"
        details = f"{whole} ({', '.join(labels)})"
        column = _rect(LEFT + pitch * number, TOP, pitch, BOTTOM - TOP, "hit")
        body.append(
            f'<g class="at"><title>{escape(details)}</title>{"".join(parts)}{column}'
            f'<g class="tip"><text x="{RIGHT}" y="{TOP - 8}">{escape(whole)}</text></g></g>'
        )
    ticks = [(LEFT + pitch * (number + 0.5), bucket[0]) for number, bucket in enumerate(buckets)]
    shown = ticks[:: max(1, math.ceil(len(ticks) / 6))]
    return _frame(shown, axis, body, label="seconds by stage")


def sparkline(points: Sequence[Point]) -> str:
    """Draw a curve the size of a word."""
    points = thin(points, 60)
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = points[0][0], points[-1][0]
    if last == first:
        return ""
    spread = (high - low) or 1.0
    path = " ".join(
        f"{2 + 92 * (step - first) / (last - first):.1f},{18 - 16 * (value - low) / spread:.1f}"
        for step, value in points
    )
    return f'<svg class="spark" viewBox="0 0 96 20" aria-hidden="true"><polyline points="{path}"/></svg>'


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers (1, 2, 5 times a power of ten) that reach from below `low` to above `high`."""
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        low, high = (low - room, low + room) if low else (0.0, 1.0)
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    # A bound that is a tick but for rounding must not add one more.
    first, last = math.floor(low / size + 1e-9), math.ceil(high / size - 1e-9)
    return [float(f"{number * size:.12g}") for number in range(first, last + 1)]


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Fewer points, the same picture: the lowest and the highest of every stretch stay."""
    if len(points) <= most:
        return list(points)
    stretches = most // 2
    kept = {points[0], points[-1]}
    for a, b in pairwise(len(points) * n // stretches for n in range(stretches + 1)):
        kept |= {min(points[a:b], key=lambda p: p[1]), max(points[a:b], key=lambda p: p[1])}
    return sorted(kept)


def smooth(points: Sequence[Point]) -> list[Point]:
    """The mean about each point, over a twentieth of the run and nearer points more: a mean of means."""
    half = max(1, len(points) // 60)
    return _means(_means(points, half), half)


def _means(points: Sequence[Point], half: int) -> list[Point]:
    sums = [0.0]
    for _, value in points:
        sums.append(sums[-1] + value)
    ends = [(max(0, n - half), min(len(points), n + half + 1)) for n in range(len(points))]
    return [(step, (sums[b] - sums[a]) / (b - a)) for (step, _), (a, b) in zip(points, ends, strict=True)]


def _axis(values: Sequence[float], *, zero: bool, share: bool, log: bool) -> Axis:
    low, high = min(values), max(values)
    middle = sorted(values)[len(values) // 2]
    if log and low > 0 and high > 100 * middle:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        apart = max(1, math.ceil((last - first) / 5))
        return Axis([10.0**n for n in range(first, last + apart, apart)], log=True, share=share)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    return Axis(nice_ticks(low, high), share=share)


def _line(line: ChartLine, steps: Steps, axis: Axis) -> str:
    tone = f"c{line.tone}"
    if len(line.points) == 1:
        return _dots(line.points, steps, axis, tone)
    if line.marks or len(line.points) < SMOOTH_FROM:
        dots = _dots(line.points, steps, axis, tone) if line.marks and len(line.points) <= 60 else ""
        return _polyline(line.points, steps, axis, f"line {tone}") + dots
    raw = _polyline(line.points, steps, axis, f"line raw {tone}")
    return raw + _polyline(smooth(line.points), steps, axis, f"line {tone}")


def _polyline(points: Sequence[Point], steps: Steps, axis: Axis, style: str) -> str:
    path = " ".join(f"{steps.x(s):.1f},{axis.y(v):.1f}" for s, v in thin(points, MOST_POINTS))
    return f'<polyline class="{style}" points="{path}"/>'


def _dots(points: Sequence[Point], steps: Steps, axis: Axis, tone: str) -> str:
    return "".join(
        f'<circle class="dot {tone}" cx="{steps.x(s):.1f}" cy="{axis.y(v):.1f}" r="2.6"/>' for s, v in points
    )


def _hovers(lines: Sequence[ChartLine], steps: Steps, axis: Axis) -> list[str]:
    """Bands over the plot that show the values of their step under the pointer, without a script."""
    values = [dict(line.points) for line in lines]
    every = sorted({step for line in lines for step, _ in line.points})
    marked = {step for line in lines if line.marks for step, _ in line.points}
    if len(every) > MOST_HOVERS:
        apart = math.ceil(len(every) / MOST_HOVERS)
        rest = set(every[::apart]) | {every[-1]}
        every = sorted(rest | marked if len(marked) <= MOST_HOVERS else rest)
    places = [steps.x(step) for step in every]
    edges = [LEFT, *((a + b) / 2 for a, b in pairwise(places)), RIGHT]
    bands = []
    for number, (step, x) in enumerate(zip(every, places, strict=True)):
        here = [(line, known[step]) for line, known in zip(lines, values, strict=True) if step in known]
        shown = percent if axis.share else compact
        figures = " · ".join(f"{line.label} {shown(value)}" for line, value in here)
        note = escape(f"step {step}: {figures}")
        dots = "".join(
            f'<circle class="c{ln.tone}" cx="{x:.1f}" cy="{axis.y(v):.1f}" r="3"/>' for ln, v in here
        )
        bands.append(
            f'<g class="at"><title>{note}</title>'
            f"{_rect(edges[number], TOP, edges[number + 1] - edges[number], BOTTOM - TOP, 'hit')}"
            f'<g class="tip"><path d="M{x:.1f} {TOP}V{BOTTOM}"/>{dots}'
            f'<text x="{RIGHT}" y="{TOP - 8}">{note}</text></g></g>'
        )
    return bands


def _frame(steps: Steps | list[tuple[float, int]], axis: Axis, body: list[str], *, label: str) -> str:
    """Draw the grid and the labels of both axes around `body`."""
    grid = "".join(f'<path d="M{LEFT} {axis.y(t):.1f}H{RIGHT}"/>' for t in axis.ticks)
    down = "".join(
        f'<text class="y" x="{LEFT - 6}" y="{axis.y(t) + 3.5:.1f}">{axis.label(t)}</text>' for t in axis.ticks
    )
    places = [(steps.x(tick), tick) for tick in steps.ticks] if isinstance(steps, Steps) else steps
    along = "".join(
        f'<text class="x" x="{x:.1f}" y="{BOTTOM + 15}">{compact(tick) if tick >= 10_000 else tick}</text>'
        for x, tick in places
    )
    name = f'<text class="y" x="{LEFT - 8}" y="{BOTTOM + 15}">step</text>'
    scale = f'<text class="y" x="{LEFT - 6}" y="{TOP - 8}">log</text>' if axis.log else ""
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">'
        f'<g class="grid">{grid}</g>{down}{along}{name}{scale}{"".join(body)}</svg>'
    )


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"/>'
