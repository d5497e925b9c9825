"""The attempts of a group side by side."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.segment import Segment as Piece
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.strip import Strip
from textual.widget import Widget

from toolwright.failures import UserError
from toolwright.observe import attempt
from toolwright.observe.terminal import dialogue
from toolwright.observe.terminal.folding import fit, fold
from toolwright.observe.terminal.pane import Line, Pane
from toolwright.observe.terminal.screen import MOVES, ViewerScreen
from toolwright.trajectory import Trajectory

LEAST = 36  # cells of a column
EDGE = Piece(" │ ", Style(dim=True))


class ColumnsPane(Pane):
    """A column for each attempt, as many as there is room for; one of them is chosen."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "choose(-1)", show=False),
        Binding("l,right", "choose(1)", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.attempts: Sequence[Trajectory] = ()
        self.chosen = 0

    def show(self, attempts: Sequence[Trajectory], chosen: int) -> None:
        self.attempts, self.chosen = attempts, chosen
        self.lay_out(to_top=True)

    def action_choose(self, by: int) -> None:
        self.chosen = max(0, min(self.chosen + by, len(self.attempts) - 1))
        self.lay_out()

    def laid_out(self, width: int) -> Sequence[Line]:
        if not self.attempts:
            return []
        room = max(1, min(len(self.attempts), (width + EDGE.cell_length) // (LEAST + EDGE.cell_length)))
        size = (width - EDGE.cell_length * (room - 1)) // room
        first = max(0, min(self.chosen - room // 2, len(self.attempts) - room))
        columns = [self._column(place, size) for place in range(first, first + room)]
        found = [*dialogue.lines(dialogue.prompt(self.attempts[0]), width), []]
        for row in zip_longest(*columns, fillvalue=[]):
            line: Line = []
            for place, part in enumerate(row):
                line += [*([EDGE] if place else []), *Strip(part).adjust_cell_length(size)]
            found.append(line)
        return found

    def _column(self, place: int, width: int) -> list[Line]:
        t = self.attempts[place]
        style = Style(bold=True, reverse=place == self.chosen)
        title = dialogue.title(t).replace("\n", " ")
        head = [[Piece(fit(line, width), style)] for line in fold(title, width)]
        return [*head, *dialogue.lines([*dialogue.turns(t), *dialogue.truth(t)], width)]


class GroupScreen(ViewerScreen):
    """The attempts at one task that were compared with each other."""

    HINTS = "h l choose · enter open · j k scroll · ? keys · q back"
    KEYS = (*MOVES, ("h l ← →", "the attempt before, after"), ("enter", "the attempt by itself"))
    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", show=False)]

    def __init__(self, step: int, rows: Sequence[int], row: int) -> None:
        super().__init__()
        self.step, self.rows, self.row = step, list(rows), row
        self.columns = ColumnsPane()

    def body(self) -> list[Widget]:
        return [self.columns]

    def on_mount(self) -> None:
        self.set_focus(self.columns)
        try:
            found = self.run.attempts(self.step, self.rows)
        except UserError as error:
            self.complain(error)
            return
        question = attempt.question(found[0].task, most=200)
        self.bar.write(f"step {self.step}  {found[0].group}  {len(found)} attempts  {question}")
        self.columns.show(found, self.rows.index(self.row))

    def action_open(self) -> None:
        self.viewer.open_attempt(self.step, self.rows[self.columns.chosen])
