"""The base of the viewer's screens: a title, a line of keys, and the way back."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Static

from toolwright.observe.attempt import visible
from toolwright.observe.numbers import compact

if TYPE_CHECKING:
    from toolwright.observe.terminal.app import ViewerApp
    from toolwright.observe.terminal.followed_run import FollowedRun

MOVES = (
    ("j k ↓ ↑", "down, up"),
    ("space PgUp", "a page down, up (also ctrl+d, ctrl+u)"),
    ("g G", "first, last"),
)
EVERYWHERE = (("q Esc", "back, and out"), ("D", "dark or light"), ("?", "these keys"))


class Bar(Static):
    """A line of text, cut at the edge. What it shows is never markup."""

    DEFAULT_CSS = """
    Bar { height: 1; width: 1fr; text-wrap: nowrap; text-overflow: ellipsis; }
    Bar.hints { color: $text-muted; }
    Bar.title { text-style: bold; }
    """

    def __init__(self, text: str = "", *, classes: str = "") -> None:
        super().__init__(classes=classes)
        self.write(text)

    def write(self, text: str, style: str = "") -> None:
        self.text = " ".join(visible(text).split(" ")).replace("\n", " ")
        self.update(Text(self.text, style=style))


class ViewerScreen(Screen[None]):
    """A screen with a title above, its main widget, and a few keys below."""

    KEYS: ClassVar[tuple[tuple[str, str], ...]] = ()  # shown by `?`
    HINTS: ClassVar[str] = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,escape", "back", show=False),
        Binding("question_mark", "keys", show=False),
        Binding("D", "light", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.bar = Bar(classes="title")

    @property
    def viewer(self) -> ViewerApp:
        return cast("ViewerApp", self.app)

    @property
    def run(self) -> FollowedRun:
        return self.viewer.run_folder

    def compose(self) -> ComposeResult:
        yield self.bar
        yield from self.body()
        yield Bar(self.HINTS, classes="hints")

    def body(self) -> list[Widget]:
        raise NotImplementedError

    def grown(self) -> None:
        """The run has new steps, or more of them are loaded."""

    def complain(self, error: Exception) -> None:
        self.app.notify(visible(str(error)), severity="error", markup=False)

    def action_back(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.app.pop_screen()
        else:
            self.app.exit()

    def action_keys(self) -> None:
        self.app.push_screen(KeysScreen((*self.KEYS, *EVERYWHERE)))

    def action_light(self) -> None:
        dark = self.app.theme == "textual-dark"
        self.app.theme = "textual-light" if dark else "textual-dark"


class KeysScreen(ModalScreen[None]):
    """The keys of a screen."""

    DEFAULT_CSS = """
    KeysScreen { align: center middle; }
    KeysScreen Static { width: 70; max-width: 100%; height: auto; max-height: 100%; padding: 1 2; }
    KeysScreen Static { border: round $primary; background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape,question_mark,enter", "dismiss", show=False)]

    def __init__(self, keys: tuple[tuple[str, str], ...]) -> None:
        super().__init__()
        self.keys = keys

    def compose(self) -> ComposeResult:
        lines = [Text.assemble((f"{key:<14}", "bold"), what) for key, what in self.keys]
        yield Static(Text("\n").join(lines))


def number(value: float) -> str:
    """A figure of the index: empty if there is none."""
    return "" if np.isnan(value) else compact(float(value))
