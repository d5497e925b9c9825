"""A chart of a run's metrics that a notebook shows by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from pathlib import Path

from toolwright.failures import UserError, nearest
from toolwright.observe.metrics import Row, series
from toolwright.observe.svg import HEIGHT, LEFT, ChartLine, line_chart
from toolwright.observe.svg import WIDTH as DRAWN_WIDTH

WIDTH = 480  # pixels in a notebook
LEGEND = 18  # units of the drawing that the legend adds below it


class MetricsChart:
    """Curves over the steps. A notebook shows it; `save` writes an SVG file."""

    def __init__(self, rows: Sequence[Row], names: Sequence[str]) -> None:
        known = {key for row in rows for key in row}
        for name in names:
            if rows and name not in known and name != "held_out/accuracy":
                raise UserError(f"no step has a metric {name!r}; {nearest(name, known)}")
        lines = [(name, series(rows, name)) for name in names]
        self.lines = [
            ChartLine(name, points, tone=number, marks=name.startswith("held_out/"))
            for number, (name, points) in enumerate(lines, 1)
            if points
        ]
        if not self.lines:
            raise UserError("there is nothing to draw yet: no step has been taken")

    def svg(self) -> str:
        """Return the chart as an SVG document with its own colours and legend."""
        css = resources.files("toolwright.observe").joinpath("report.css").read_text("utf-8")
        entries = "".join(
            f'<tspan class="c{line.tone}" fill="currentColor" dx="10">■</tspan> {escape(line.label)}'
            for line in self.lines
        )
        legend = f'<text x="{LEFT - 10}" y="{HEIGHT + LEGEND - 6}">{entries}</text>'
        chart, _, _ = line_chart(self.lines).partition("</svg>")
        _, _, body = chart.partition(">")
        return (
            f'<svg class="chart" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" role="img" '
            f'font-family="sans-serif" viewBox="0 0 {DRAWN_WIDTH} {HEIGHT + LEGEND}">'
            f"<style>{''.join(_chart_rules(css))}</style>{body}{legend}</svg>"
        )

    def save(self, file: str | Path) -> None:
        Path(file).write_text(self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return f'<figure style="margin:0;max-width:{WIDTH}px">{self.svg()}</figure>'

    def __repr__(self) -> str:
        drawn = ", ".join(f"{line.label} {line.points[-1][1]:.3g}" for line in self.lines)
        return f"MetricsChart({drawn} at step {self.lines[0].points[-1][0]})"


def _chart_rules(css: str) -> Iterable[str]:
    """Yield the rules of the report's style sheet that charts and their colours need."""
    for rule in re.findall(r"[^{}]+\{[^{}]*\}", css.partition("@media")[0] + css.partition("* {")[2]):
        if ":root" in rule:
            yield rule.replace(":root", ".chart")
        elif re.match(r"\s*\.(chart|c\d)\b", rule):
            yield rule
