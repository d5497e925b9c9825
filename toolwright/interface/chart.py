"""A chart of a run's metrics that a notebook shows by itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path

from toolwright.failures import UserError, nearest
from toolwright.observe.metrics import Row, series
from toolwright.observe.svg import ChartLine, line_chart

WIDTH = 480


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
        """The chart as an SVG document with its own colours."""
        style = "".join(
            _rules(resources.files("toolwright.observe").joinpath("report.css").read_text("utf-8"))
        )
        picture = line_chart(self.lines)
        return picture.replace(
            'class="chart"', f'class="chart" xmlns="http://www.w3.org/2000/svg" width="{WIDTH}"', 1
        ).replace(">", f"><style>{style}</style>", 1)

    def save(self, file: str | Path) -> None:
        Path(file).write_text(self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        keys = "  ".join(f'<b class="chart c{line.tone}">■</b> {line.label}' for line in self.lines)
        caption = f"<figcaption>{keys}</figcaption>"
        return f'<figure style="margin:0;max-width:{WIDTH}px">{caption}{self.svg()}</figure>'

    def __repr__(self) -> str:
        drawn = ", ".join(f"{line.label} {line.points[-1][1]:.3g}" for line in self.lines)
        return f"MetricsChart({drawn} at step {self.lines[0].points[-1][0]})"


def _rules(css: str) -> Iterable[str]:
    """The rules of the report's style sheet for colours and charts."""
    for rule in re.findall(r"[^{}]+\{[^{}]*\}", css.partition("@media")[0] + css.partition("* {")[2]):
        if ":root" in rule:
            yield rule.replace(":root", ".chart")
        elif rule.lstrip().startswith((".chart", ".c")):
            yield rule
