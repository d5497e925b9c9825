"""One attempt: turn by turn, or token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from textual.binding import Binding, BindingType
from textual.widget import Widget

from toolwright.failures import UserError
from toolwright.observe import attempt
from toolwright.observe.numbers import compact
from toolwright.observe.terminal import dialogue
from toolwright.observe.terminal.attempts import AttemptsScreen
from toolwright.observe.terminal.pane import Line, Pane
from toolwright.observe.terminal.screen import MOVES, Bar, ViewerScreen
from toolwright.observe.terminal.token_pane import TokenPane
from toolwright.observe.terminal.tokens import MEASURES
from toolwright.trajectory import Trajectory


class DialoguePane(Pane):
    """The turns of an attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.attempt: Trajectory | None = None
        self.full = False

    def show(self, t: Trajectory) -> None:
        self.attempt = t
        self.lay_out(to_top=True)

    def laid_out(self, width: int) -> Sequence[Line]:
        if self.attempt is None:
            return []
        most = dialogue.LONG if self.full else dialogue.SHORT
        found = [dialogue.Paragraph("", dialogue.title(self.attempt), "bold")]
        for part in (dialogue.prompt, dialogue.turns, dialogue.truth):
            found += part(self.attempt, most=most)
        return list(dialogue.lines(found, width))


class AttemptScreen(ViewerScreen):
    """Shows an attempt of a table. Keys lead to the next one."""

    HINTS = "n p next, last · v tokens · m colour by · c group · t task · e export · ? keys"
    KEYS = (
        *MOVES,
        ("n p", "the next, the previous attempt of the table"),
        ("v", "token by token, and back to the turns"),
        ("m M, 1 to 5", f"colour tokens by {', '.join(MEASURES)}"),
        ("h l", "the token before, after (in the view of tokens)"),
        ("f", "all of a long text, and back"),
        ("c", "the attempts of the group side by side"),
        ("t", "the same task through the steps"),
        ("e", "export: FILE.md or FILE.jsonl"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "go(1)", show=False),
        Binding("p", "go(-1)", show=False),
        Binding("v", "tokens", show=False),
        Binding("m", "measure(1)", show=False),
        Binding("M", "measure(-1)", show=False),
        *(Binding(str(place + 1), f"choose({place})", show=False) for place in range(len(MEASURES))),
        Binding("f", "full", show=False),
        Binding("c", "group", show=False),
        Binding("t", "task", show=False),
        Binding("e", "export", show=False),
    ]

    def __init__(self, step: int, row: int, among: AttemptsScreen | None) -> None:
        super().__init__()
        self.step, self.row, self.among = step, row, among
        self.facts = Bar(classes="hints")
        self.turns = DialoguePane()
        self.tokens = TokenPane()
        self.attempt: Trajectory | None = None

    def body(self) -> list[Widget]:
        return [self.facts, self.turns, self.tokens]

    def on_mount(self) -> None:
        self.tokens.display = False
        self.set_focus(self.turns)
        self._open(self.step, self.row)

    def action_go(self, by: int) -> None:
        found = self.among.neighbour(self.step, self.row, by) if self.among is not None else None
        if found is not None:
            self._open(*found)

    def action_tokens(self) -> None:
        self.tokens.display = not self.tokens.display
        self.turns.display = not self.tokens.display
        self.set_focus(self.tokens if self.tokens.display else self.turns)
        if self.tokens.display and self.attempt is not None:
            self.tokens.show(self.attempt, self.viewer.token_values(self.step, self.row), self.viewer.decode)
        self._title()

    def action_measure(self, by: int) -> None:
        self.action_choose((MEASURES.index(self.tokens.measure) + by) % len(MEASURES))

    def action_choose(self, place: int) -> None:
        if not self.tokens.display:
            self.action_tokens()
        self.tokens.colour_by(MEASURES[place])
        self._title()

    def on_token_pane_moved(self) -> None:
        self._title()

    def action_full(self) -> None:
        self.turns.full = not self.turns.full
        self.turns.lay_out()

    def action_group(self) -> None:
        self.viewer.open_group(self.step, self.row)

    def action_task(self) -> None:
        self.viewer.open_task(self.step, self.row)

    def action_export(self) -> None:
        place = self.run.table.place(self.step, self.row)
        if place is not None and self.attempt is not None:
            title = f"{self.run.path.resolve().name}: step {self.step}, {self.attempt.group}"
            name = f"step-{self.step}-attempt-{self.row}"
            self.viewer.ask_export(name, title, self.run.table, np.array([place]))

    def _open(self, step: int, row: int) -> None:
        self.step, self.row = step, row
        try:
            (self.attempt,) = self.run.attempts(step, [row])
        except UserError as error:
            self.complain(error)
            return
        self.turns.show(self.attempt)
        if self.tokens.display:
            self.tokens.show(self.attempt, self.viewer.token_values(step, row), self.viewer.decode)
        self._title()

    def _title(self) -> None:
        if self.attempt is None:
            return
        t = self.attempt
        words = [f"step {self.step}", t.group, f"attempt {t.index}"]
        words.append("no reward" if t.reward is None else f"reward {compact(t.reward)}")
        self.bar.write("  ".join([*words, attempt.question(t.task, most=200)]))
        self.facts.write(self.tokens.status if self.tokens.display else "")
        self.facts.display = self.tokens.display
