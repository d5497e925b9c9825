"""The viewer: its screens over one run folder, which it follows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.widgets import Input

from toolwright.failures import UserError
from toolwright.observe import rollouts
from toolwright.observe.attempt import visible
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.export import selected, write_export
from toolwright.observe.terminal.attempt import AttemptScreen
from toolwright.observe.terminal.attempts import AttemptScope, AttemptsScreen
from toolwright.observe.terminal.followed_run import FollowedRun
from toolwright.observe.terminal.group import GroupScreen
from toolwright.observe.terminal.screen import Bar, ViewerScreen
from toolwright.observe.terminal.steps import StepsScreen
from toolwright.observe.token_texts import TokenTexts
from toolwright.record import TokenValues

Array = np.ndarray[Any, Any]
LOOKS_EVERY_S = 1.0


class ViewerApp(App[None]):
    """Opens on the steps of a run."""

    TITLE = "toolwright view"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", show=False, priority=True)]

    def __init__(self, run: Path) -> None:
        # The terminal's own colours are the only ones that can be left out altogether.
        super().__init__(ansi_color=True if "NO_COLOR" in os.environ else None)
        self.run_folder = FollowedRun(run)
        self._texts = TokenTexts(self._file)

    def on_mount(self) -> None:
        self.run_folder.look()
        self.push_screen(StepsScreen())
        self._load()
        self.set_interval(LOOKS_EVERY_S, self._look)

    def open_attempts(
        self, *, step: int | None = None, task: str | None = None, filtering: bool = False
    ) -> None:
        self.push_screen(AttemptsScreen(AttemptScope(step, task), filtering=filtering))

    def open_attempt(self, step: int, row: int, among: AttemptsScreen | None = None) -> None:
        self.push_screen(AttemptScreen(step, row, among))

    def open_group(self, step: int, row: int) -> None:
        """All attempts of the step that are of the same group as this one."""
        table = self.run_folder.table
        place = table.place(step, row)
        if place is not None:
            self.push_screen(GroupScreen(step, table.row[table.same_group(place)].tolist(), row))

    def open_task(self, step: int, row: int) -> None:
        """All attempts at the same task."""
        table = self.run_folder.table
        place = table.place(step, row)
        if place is not None:
            self.open_attempts(task=table.texts["task"].at(place))

    def token_values(self, step: int, row: int) -> TokenValues | None:
        path = self.run_folder.table.path(step)
        try:
            return rollouts.token_values(path, [row])[0] if path is not None else None
        except UserError:  # the tokens and the engine's values are there all the same
            return None

    def _file(self, *parts: str) -> Path | None:
        path = self.run_folder.path.joinpath(*parts)
        return path if path.is_file() else None

    def decode(self, tokens: list[int]) -> list[str] | None:
        return self._texts.of(tokens)

    def ask_export(self, name: str, title: str, table: AttemptTable, places: Array) -> None:
        if len(places):
            self.push_screen(ExportScreen(f"{name}.md", title, table, places))

    def _look(self) -> None:
        if not self._loading and self.run_folder.look():
            self._load()

    _loading = False

    @work(thread=True, exclusive=True, group="load")
    def _load(self) -> None:
        self._loading = True
        try:
            for _ in self.run_folder.load():
                self.call_from_thread(self._grown)
        finally:
            self._loading = False

    def _grown(self) -> None:
        for screen in self.screen_stack:
            if isinstance(screen, ViewerScreen):
                screen.grown()


class ExportScreen(ModalScreen[None]):
    """Asks for a file, and writes attempts into it."""

    DEFAULT_CSS = """
    ExportScreen { align: center middle; }
    ExportScreen Vertical { width: 66; max-width: 100%; height: auto; padding: 1 2; border: round $primary; }
    ExportScreen Vertical { background: $surface; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss", show=False)]

    def __init__(self, name: str, title: str, table: AttemptTable, places: Array) -> None:
        super().__init__()
        self.input = Input(value=name, select_on_focus=False)
        self.note = Bar(f"{len(places):,} attempts to FILE.md or FILE.jsonl; Esc leaves")
        self._title, self._table, self._places = title, table, places
        self._overwrite = ""

    def compose(self) -> ComposeResult:
        from textual.containers import Vertical

        with Vertical():
            yield self.note
            yield self.input

    def on_mount(self) -> None:
        self.input.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        path = Path(event.value.strip()).expanduser()
        if path.exists() and str(path) != self._overwrite:
            self._overwrite = str(path)
            self.note.write(f"{path.name} is there already; Enter replaces it", "bold red")
            return
        self.note.write("writing …")
        self.input.disabled = True
        self._write(path)

    @work(thread=True)
    def _write(self, path: Path) -> None:
        try:
            count = write_export(path, self._title, selected(self._table, self._places))
        except UserError as error:
            self.app.call_from_thread(self._refused, str(error))
        else:
            self.app.call_from_thread(self._written, f"{count:,} attempts written to {path}")

    def _refused(self, text: str) -> None:
        self.input.disabled = False
        self.set_focus(self.input)
        self.note.write(text, "bold red")

    def _written(self, text: str) -> None:
        self.app.notify(visible(text), markup=False)
        self.dismiss()


def start(run: Path) -> None:
    """Run the viewer until it is left."""
    ViewerApp(run).run()
