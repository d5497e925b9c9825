"""Styled lines that scroll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment as Piece
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

Line = list[Piece]


class Scrolled(ScrollView, can_focus=True):
    """Something longer than the screen, with the keys that every such widget has."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j,down", "down(1)", show=False),
        Binding("k,up", "down(-1)", show=False),
        Binding("ctrl+d,pagedown,space", "page(1)", show=False),
        Binding("ctrl+u,pageup", "page(-1)", show=False),
        Binding("g,home", "down(-1000000000)", show=False),
        Binding("G,end", "down(1000000000)", show=False),
    ]

    @property
    def room(self) -> int:
        """The width beside the scroll bar."""
        return self.scrollable_content_region.width

    def action_down(self, lines: int) -> None:
        self.scroll_to(y=self.scroll_offset.y + lines, animate=False)

    def action_page(self, pages: int) -> None:
        self.action_down(pages * max(1, self.size.height - 2))


class Pane(Scrolled):
    """A text that is laid out again for each width of the terminal."""

    DEFAULT_CSS = "Pane { height: 1fr; overflow-x: hidden; overflow-y: scroll; scrollbar-size-vertical: 1; }"

    def __init__(self) -> None:
        super().__init__()
        self.lines: Sequence[Line] = []

    def laid_out(self, width: int) -> Sequence[Line]:
        """The lines for this width; a subclass has them."""
        return self.lines

    def lay_out(self, *, to_top: bool = False) -> None:
        if self.room:
            self.lines = self.laid_out(self.room)
            self.virtual_size = Size(self.room, len(self.lines))
        if to_top:
            self.scroll_to(y=0, animate=False)
        self.refresh()

    def on_resize(self, event: Resize) -> None:
        self.lay_out()

    def line_at(self, place: int) -> Line:
        return self.lines[place]

    def render_line(self, y: int) -> Strip:
        place, width = self.scroll_offset.y + y, self.room
        if place >= len(self.lines):
            return Strip.blank(width, self.rich_style)
        line = Strip(self.line_at(place)).adjust_cell_length(width, self.rich_style)
        return line.apply_style(self.rich_style)
