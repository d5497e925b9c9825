"""The tokens of an attempt on the screen, with a cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment as Piece
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.message import Message

from toolwright.observe.terminal.dialogue import COLOURS
from toolwright.observe.terminal.folding import fit
from toolwright.observe.terminal.pane import Line, Pane
from toolwright.observe.terminal.tokens import (
    MEASURES,
    Decode,
    TokenTable,
    shown_text,
    token_styles,
    token_table,
)  # fmt: skip
from toolwright.record import TokenValues
from toolwright.trajectory import Trajectory

CURSOR = Style(reverse=True, bold=True)


class TokenPane(Pane):
    """Tokens in the order in which they were read and sampled."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "move(-1)", show=False),
        Binding("l,right", "move(1)", show=False),
        Binding("j,down", "line(1)", show=False),
        Binding("k,up", "line(-1)", show=False),
    ]

    class Moved(Message):
        """Another token is under the cursor."""

    def __init__(self) -> None:
        super().__init__()
        self.measure = MEASURES[0]
        self.cursor = 0
        self.table: TokenTable | None = None
        self._attempt: Trajectory | None = None
        self._rows: list[list[int]] = []  # of each line, its tokens

    def show(self, attempt: Trajectory, values: TokenValues | None, decode: Decode) -> None:
        self._attempt, self.table = attempt, token_table(attempt, values, decode)
        sampled = np.flatnonzero(attempt.mask)
        self.cursor = int(sampled[0]) if len(sampled) else 0
        self.lay_out(to_top=True)
        self._follow()

    def colour_by(self, measure: str) -> None:
        self.measure = measure
        self.lay_out()

    @property
    def status(self) -> str:
        """Describe the token under the cursor, and what the colours mean."""
        table = self.table
        if table is None or not table.ids:
            return "no tokens"
        of_learner = self.measure in ("advantage", "entropy", "gap")
        why = " (not kept by this run)" if of_learner and np.isnan(table.values[self.measure]).all() else ""
        return f"[{self.measure}]{why} {table.line(self.cursor)}"

    def action_move(self, by: int) -> None:
        if self.table is not None and self.table.ids:
            self.cursor = max(0, min(self.cursor + by, len(self.table.ids) - 1))
            self._follow()
            self.refresh()
            self.post_message(self.Moved())

    def action_line(self, by: int) -> None:
        """Move to the token at the same place of the next line."""
        lines = [row for row in self._rows if row]
        here = next((number for number, row in enumerate(lines) if row[0] <= self.cursor <= row[-1]), None)
        if here is None or not 0 <= here + by < len(lines):
            return
        place = min(self.cursor - lines[here][0], len(lines[here + by]) - 1)
        self.action_move(lines[here + by][place] - self.cursor)

    def laid_out(self, width: int) -> Sequence[Line]:
        self._rows = []
        if self.table is None or self._attempt is None:
            return []
        found: list[Line] = []
        styles = token_styles(
            self.table, self.measure, np.array(self._attempt.mask), coloured=not self.app.no_color
        )
        start = 0
        for segment in self._attempt.segments:
            found.append([Piece(segment.source, Style.parse(f"bold {COLOURS.get(segment.source, '')}"))])
            self._rows.append([])
            self._flow(found, range(start, start + len(segment.tokens)), styles, width)
            start += len(segment.tokens)
        return found

    def _flow(self, found: list[Line], places: range, styles: Sequence[Style], width: int) -> None:
        """Tokens one after another, a new line where there is no room and after a line break."""
        assert self.table is not None
        room = 0
        for place in places:
            text = shown_text(self.table.texts[place])
            size = cell_len(text)
            if size > width:
                text, size = fit(text, width), width
            if size > room:
                found.append([])
                self._rows.append([])
                room = width
            found[-1].append(Piece(text, styles[place]))
            self._rows[-1].append(place)
            room -= size
            if "⏎" in text:
                room = 0

    def _follow(self) -> None:
        rows = enumerate(self._rows)
        line = next((n for n, row in rows if row and row[0] <= self.cursor <= row[-1]), 0)
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= line < top + height:
            self.scroll_to(y=max(0, line - height // 2), animate=False)

    def line_at(self, place: int) -> Line:
        row = self._rows[place] if place < len(self._rows) else []
        line = self.lines[place]
        if row and row[0] <= self.cursor <= row[-1]:
            line = list(line)
            at = self.cursor - row[0]
            line[at] = Piece(line[at].text, CURSOR)
        return line
