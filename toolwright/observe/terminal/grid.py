"""A table that draws only the rows on the screen, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment as Piece
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.events import Click, Resize
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from toolwright.observe.terminal.folding import fit
from toolwright.observe.terminal.pane import Scrolled

Cell = tuple[str, str]  # text and style
REST = 18  # cells at least of the column that takes the rest


@dataclass(frozen=True)
class GridColumn:
    """A column: its heading and its cells. Width 0 takes what is left; a narrow terminal hides optional
    columns."""

    name: str
    width: int = 0
    right: bool = True
    optional: bool = False


class Grid(Scrolled):
    """Rows with a cursor, and headings of which one can be chosen to sort by."""

    DEFAULT_CSS = "Grid { height: 1fr; overflow-x: hidden; overflow-y: auto; scrollbar-size-vertical: 1; }"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("h,left", "aim(-1)", show=False),
        Binding("l,right", "aim(1)", show=False),
        Binding("s", "sort", show=False),
        Binding("enter", "open", show=False),
    ]
    cursor: reactive[int] = reactive(0)
    aimed: reactive[int] = reactive(0)

    class Opened(Message):
        """A row was chosen."""

        def __init__(self, row: int) -> None:
            super().__init__()
            self.row = row

    class Sorted(Message):
        """The rows are to be sorted by this column."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, columns: Sequence[GridColumn], *, sortable: bool = False) -> None:
        super().__init__()
        self.columns = list(columns)
        self.sortable = sortable
        self.sorted_by, self.descending = "", False
        self.rows = 0
        self._cells: Callable[[int], Sequence[Cell]] = lambda row: ()

    def show(self, rows: int, cells: Callable[[int], Sequence[Cell]], cursor: int | None = None) -> None:
        """Take so many rows; `cells` gives those of one row, in the order of the columns."""
        self.rows, self._cells = rows, cells
        self._measure()
        wanted = self.cursor if cursor is None else cursor
        self.cursor = max(0, min(wanted, rows - 1))
        self._follow()
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self._measure()
        self._follow()

    def watch_cursor(self) -> None:
        self._follow()
        self.refresh()

    def action_down(self, rows: int) -> None:
        self.cursor = max(0, min(self.cursor + rows, self.rows - 1))

    def action_aim(self, columns: int) -> None:
        if self.sortable:
            self.aimed = (self.aimed + columns) % len(self.shown)

    def action_sort(self) -> None:
        if self.sortable:
            self.post_message(self.Sorted(self.shown[self.aimed % len(self.shown)].name))

    def action_open(self) -> None:
        if self.rows:
            self.post_message(self.Opened(self.cursor))

    def on_click(self, event: Click) -> None:
        if event.y == 0:
            self._click_heading(event.x)
        elif (row := self.scroll_offset.y + event.y - 1) < self.rows:
            if row == self.cursor:
                self.action_open()
            self.cursor = row

    def _click_heading(self, x: int) -> None:
        for place, (column, width) in enumerate(zip(self.shown, self._widths(), strict=True)):
            if x <= width and self.sortable:
                self.aimed = place
                self.post_message(self.Sorted(column.name))
                return
            x -= width + 1

    @property
    def shown(self) -> list[GridColumn]:
        """The columns that there is room for."""
        columns = list(self.columns)
        while self._taken(columns) + REST > self.room and any(one.optional for one in columns):
            columns.remove([one for one in columns if one.optional][-1])
        return columns

    def _taken(self, columns: Sequence[GridColumn]) -> int:
        return 2 + sum(column.width + 1 for column in columns)

    def _widths(self) -> list[int]:
        shown = self.shown
        rest = max(1, self.room - self._taken(shown))
        return [column.width or rest for column in shown]

    def _measure(self) -> None:
        self.virtual_size = Size(self.room, self.rows + 1)

    def _follow(self) -> None:
        """Scroll so that the cursor is seen. The heading covers the first line."""
        height = max(1, self.size.height - 1)
        top = self.scroll_offset.y
        if self.cursor < top:
            self.scroll_to(y=self.cursor, animate=False)
        elif self.cursor >= top + height:
            self.scroll_to(y=self.cursor - height + 1, animate=False)

    def render_line(self, y: int) -> Strip:
        width = self.room
        if y == 0:
            heading = Strip(self._heading()).adjust_cell_length(width, self.rich_style)
            return heading.apply_style(self.rich_style)
        row = self.scroll_offset.y + y - 1
        if row >= self.rows:
            return Strip.blank(width, self.rich_style)
        chosen = row == self.cursor
        base = self.rich_style + Style(reverse=True, bold=True) if chosen else self.rich_style
        pieces = [Piece("▸ " if chosen else "  ")]
        shown = {column.name: size for column, size in zip(self.shown, self._widths(), strict=True)}
        for column, (text, style) in zip(self.columns, self._cells(row), strict=True):
            if column.name in shown:
                text = fit(text, shown[column.name], right=column.right and column.width > 0)
                # Colours under a reversed cursor are hard to read.
                pieces.append(Piece(text + " ", Style() if chosen else Style.parse(style)))
        return Strip(pieces).adjust_cell_length(width, base).apply_style(base)

    def _heading(self) -> list[Piece]:
        pieces = [Piece("  ")]
        for place, (column, width) in enumerate(zip(self.shown, self._widths(), strict=True)):
            arrow = "" if column.name != self.sorted_by else "▼" if self.descending else "▲"
            style = Style(bold=True, dim=not arrow, underline=self.sortable and place == self.aimed)
            text = fit(arrow + column.name, width, right=column.right and column.width > 0)
            name = text.strip()
            before = text[: len(text) - len(text.lstrip())]
            pieces += [Piece(before), Piece(name, style), Piece(text[len(before) + len(name) :] + " ")]
        return pieces
