"""The steps of a run: the curve of its reward, and a line for each step."""

from __future__ import annotations

import time
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.widget import Widget

from toolwright.observe.attempt_index import STEP_COLUMNS
from toolwright.observe.live import sparkline
from toolwright.observe.numbers import compact, rough
from toolwright.observe.terminal.grid import Cell, Grid, GridColumn
from toolwright.observe.terminal.screen import MOVES, Bar, ViewerScreen

WIDTHS, OPTIONAL = (6, 8, 6, 6, 6, 6, 6, 0), ("groups", "least", "most")
NARROW = {"tool calls": "tools"}
COLUMNS = (
    GridColumn("step", 6),
    *(
        GridColumn(NARROW.get(name, name), width, optional=name in OPTIONAL)
        for name, width in zip(STEP_COLUMNS, WIDTHS, strict=True)
    ),
)


class StepsScreen(ViewerScreen):
    """The first screen."""

    HINTS = "enter attempts of the step · a all attempts · / filter · ? keys · q quit"
    KEYS = (
        *MOVES,
        ("enter", "the attempts of the step"),
        ("a", "the attempts of all steps"),
        ("/", "filter all attempts"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "all", show=False),
        Binding("slash", "all(True)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.curve = Bar()
        self.grid = Grid(COLUMNS)
        self._steps: list[int] = []

    def body(self) -> list[Widget]:
        return [self.curve, self.grid]

    def on_mount(self) -> None:
        self.set_focus(self.grid)
        self.grown()
        self.set_interval(1.0, self._title)

    def on_resize(self) -> None:
        self._title()

    def grown(self) -> None:
        # The cursor stays at the end, where new steps come, unless it was moved from there.
        at_end = self.grid.cursor >= len(self._steps) - 1
        self._steps = list(self.run.files)
        self.grid.show(len(self._steps), self._cells, len(self._steps) - 1 if at_end else None)
        self._title()

    def on_grid_opened(self, event: Grid.Opened) -> None:
        self.viewer.open_attempts(step=self._steps[event.row])

    def action_all(self, filtering: bool = False) -> None:
        self.viewer.open_attempts(filtering=filtering)

    def _title(self) -> None:
        run = self.run
        rewards = run.mean_rewards()
        words = [run.path.resolve().name, f"{len(run.files)} steps", f"{len(run.table):,} attempts"]
        if run.files:
            last = max(version[0] for _, version in run.files.values()) / 1e9
            words.append(f"last step {rough(max(0.0, time.time() - last))} ago")
        if len(run.table.parts) < len(run.files):
            words.append(f"reading {len(run.table.parts)} of {len(run.files)}")
        words += run.table.problems.values()
        self.bar.write("  ".join(words))
        if not rewards:
            self.curve.write("no rewards yet", "dim")
            return
        ends = f"reward {compact(rewards[0])} → {compact(rewards[-1])}, best {compact(max(rewards))}  "
        self.curve.write(ends + sparkline(rewards, max(8, self.size.width - len(ends) - 2)), "cyan")

    def _cells(self, row: int) -> list[Cell]:
        step = self._steps[row]
        digest = self.run.digest(step)
        if digest is None:
            return [(str(step), ""), *[("·", "dim")] * (len(COLUMNS) - 2), ("", "")]
        *figures, (stops, _) = digest.cells
        return [(str(step), "bold"), *figures, (self.run.table.problems.get(step, stops), "dim")]
