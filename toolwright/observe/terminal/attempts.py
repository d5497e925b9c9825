"""Attempts in a table: sorted, filtered, searched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from textual import work
from textual.binding import Binding, BindingType
from textual.events import Key
from textual.widget import Widget
from textual.widgets import Input
from textual.worker import get_current_worker

from toolwright.failures import UserError
from toolwright.observe.attempt import tone
from toolwright.observe.attempt_filter import AttemptFilter
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.listing import TONES
from toolwright.observe.terminal.followed_run import TextHits
from toolwright.observe.terminal.grid import Cell, Grid, GridColumn
from toolwright.observe.terminal.screen import MOVES, ViewerScreen, number

Array = np.ndarray[Any, Any]
# Column of the table that a heading stands for, where the names differ.
SOURCES = {"#": "index", "tokens": "length", "tools": "tool_calls", "time": "seconds"}
COLUMNS = (
    GridColumn("step", 6),
    GridColumn("group", 14, right=False),
    GridColumn("#", 3),
    GridColumn("reward", 7),
    GridColumn("stop", 8, right=False),
    GridColumn("tokens", 6),
    GridColumn("turns", 5, optional=True),
    GridColumn("tools", 5),
    GridColumn("time", 6, optional=True),
    GridColumn("question", right=False),
)


@dataclass(frozen=True)
class AttemptScope:
    """The attempts that a table is about: of a step, at a task, or all."""

    step: int | None = None
    task: str | None = None

    def places(self, table: AttemptTable) -> Array:
        keep = np.ones(len(table), bool)
        if self.step is not None:
            keep &= table.step == self.step
        if self.task is not None:
            keep &= table.texts["task"].codes == table.texts["task"].words.find(self.task)
        return np.flatnonzero(keep)

    def __str__(self) -> str:
        if self.task is not None:
            return f"task {self.task}, step by step"
        return "all steps" if self.step is None else f"step {self.step}"


class FilterInput(Input):
    """The line in which the user writes a filter. Escape leaves it as it was."""

    def on_key(self, event: Key) -> None:
        if event.key == "escape":
            event.stop()
            self.display = False
            self.screen.set_focus(self.screen.query_one(Grid))


class AttemptsScreen(ViewerScreen):
    """A table of attempts."""

    HINTS = "enter open · / filter · h l s sort · c group · t task · e export · ? keys"
    KEYS = (
        *MOVES,
        ("enter", "the attempt turn by turn"),
        ("/", "filter: reward<0.5 stop=length tools>0 group~x some words"),
        ("h l, then s", "choose a column, sort by it; s again turns it around"),
        ("c", "the attempts of the group side by side"),
        ("t", "the same task through the steps"),
        ("e", "export what is shown: FILE.md or FILE.jsonl"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash,f", "filter", show=False),
        Binding("c", "group", show=False),
        Binding("t", "task", show=False),
        Binding("e", "export", show=False),
    ]

    def __init__(self, scope: AttemptScope, *, filtering: bool = False) -> None:
        super().__init__()
        self.scope = scope
        self.grid = Grid(COLUMNS if scope.step is None else COLUMNS[1:], sortable=True)
        self.input = FilterInput(
            placeholder="reward<0.5 stop=length tools>0 some words", select_on_focus=False, compact=True
        )
        self.places: Array = np.zeros(0, np.int64)
        self._filtering = filtering
        self._filter = AttemptFilter()
        self._hits: TextHits | None = None
        self._table = AttemptTable()

    def body(self) -> list[Widget]:
        return [self.input, self.grid]

    def on_mount(self) -> None:
        self.input.display = False
        self.set_focus(self.grid)
        self.grown()
        if self._filtering:
            self.action_filter()

    def grown(self) -> None:
        cursor = self.chosen()
        self._table = self.run.table
        self._arrange(cursor)
        if self._hits is not None:
            self._title("searching …")
            self._search()

    def chosen(self) -> tuple[int, int] | None:
        """Step and row of the attempt under the cursor."""
        if not len(self.places):
            return None
        place = self.places[self.grid.cursor]
        return int(self._table.step[place]), int(self._table.row[place])

    def neighbour(self, step: int, row: int, by: int) -> tuple[int, int] | None:
        """The attempt that stands so many rows below another one. The cursor goes along."""
        here = self._find((step, row))
        if here is None or not 0 <= here + by < len(self.places):
            return None
        self.grid.cursor = here + by
        return self.chosen()

    def action_filter(self) -> None:
        self.input.value = self._filter.text
        self.input.display = True
        self.set_focus(self.input)  # at once: the next key is meant for it

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            found = AttemptFilter.parse(event.value)
            found.places(self._table)
        except UserError as error:
            self.bar.write(str(error), "bold red")
            return
        self.input.display = False
        self.set_focus(self.grid)
        cursor, self._filter = self.chosen(), found
        self._hits = TextHits(found.words) if found.words else None
        self._arrange(cursor)
        if self._hits is not None:
            self._title("searching …")
            self._search()

    def on_grid_opened(self, event: Grid.Opened) -> None:
        if (chosen := self.chosen()) is not None:
            self.viewer.open_attempt(*chosen, among=self)

    def on_grid_sorted(self, event: Grid.Sorted) -> None:
        grid = self.grid
        cursor = self.chosen()
        grid.descending = not grid.descending if grid.sorted_by == event.name else False
        grid.sorted_by = event.name
        self._arrange(cursor)

    def action_group(self) -> None:
        if (chosen := self.chosen()) is not None:
            self.viewer.open_group(*chosen)

    def action_task(self) -> None:
        if (chosen := self.chosen()) is not None:
            self.viewer.open_task(*chosen)

    def action_export(self) -> None:
        name = f"step-{self.scope.step}" if self.scope.step is not None else "attempts"
        title = f"{self.run.path.resolve().name}: {self.scope} {self._filter.text}".strip()
        self.viewer.ask_export(name, title, self._table, self.places)

    def _arrange(self, cursor: tuple[int, int] | None) -> None:
        """Filter and sort, and keep the cursor on its attempt."""
        table = self._table
        places = np.intersect1d(self.scope.places(table), self._filter.places(table), assume_unique=True)
        if self._hits is not None:
            places = np.intersect1d(places, self._hits.places(table))
        self.places = places[np.argsort(self._keys(places), kind="stable")]
        self.grid.show(len(places), self._cells, self._find(cursor) if cursor else None)
        self._title()

    def _keys(self, places: Array) -> Array:
        """The keys to sort by; what has no value comes last in either order."""
        keys = self._table.sort_keys(SOURCES.get(self.grid.sorted_by, self.grid.sorted_by))
        if keys is None:
            return np.arange(len(places))
        return -keys[places] if self.grid.descending else keys[places]

    def _find(self, attempt: tuple[int, int] | None) -> int | None:
        if attempt is None:
            return None
        here = self._table.place(*attempt)
        found = np.flatnonzero(self.places == (-1 if here is None else here))
        return int(found[0]) if len(found) else None

    def _title(self, note: str = "") -> None:
        words = [str(self.scope), f"{len(self.places):,} attempts"]
        if self._filter.text:
            words.append(f"filter: {self._filter.text}")
        left = len(self.run.files) - len(self._table.parts)
        if left and self.scope.step is None:
            words.append(f"reading {left} more steps")
        self.bar.write("  ".join([*words, note]))

    def _cells(self, row: int) -> list[Cell]:
        table, place = self._table, self.places[row]
        numbers, texts = table.numbers, table.texts
        failed = numbers["failed"][place] > 0
        reward = "failed" if failed else number(numbers["reward"][place]) or "-"
        step = [(str(table.step[place]), "dim")] if self.scope.step is None else []
        return [
            *step,
            (texts["group"].at(place), ""),
            (number(numbers["index"][place]), "dim"),
            (reward, self._tone(place)),
            (texts["stop"].at(place), "yellow" if texts["stop"].at(place) in ("length", "tokens") else ""),
            (number(numbers["length"][place]), ""),
            (number(numbers["turns"][place]), ""),
            (number(numbers["tool_calls"][place]), "red" if numbers["tool_errors"][place] > 0 else ""),
            (number(numbers["seconds"][place]), "dim"),
            (texts["question"].at(place) or texts["task"].at(place), ""),
        ]

    def _tone(self, place: int) -> str:
        digest = self.run.digest(int(self._table.step[place]))
        reward = self._table.numbers["reward"][place]
        known = digest.rewards if digest is not None else []
        return TONES[tone(float(reward) if known and not np.isnan(reward) else None, known)]

    @work(thread=True, exclusive=True, group="search")
    def _search(self) -> None:
        """Search step by step, the newest first, and show what was found so far."""
        worker, hits, table = get_current_worker(), self._hits, self._table
        if hits is None:
            return
        todo = [step for step in hits.missing(table) if self.scope.step in (None, step)]
        if not todo:
            self.app.call_from_thread(self._searched, hits, "")
        for count, step in enumerate(todo, start=1):
            if worker.is_cancelled:
                return
            hits.search(table, step)
            note = f"searched {count} of {len(todo)} steps" if count < len(todo) else ""
            self.app.call_from_thread(self._searched, hits, note)

    def _searched(self, hits: TextHits, note: str) -> None:
        if hits is self._hits:
            self._arrange(self.chosen())
            self._title(note)
