"""Sokoban: boxes are pushed onto targets and can never be pulled, so that a push may be one too many.

A level is drawn as everywhere: `#` wall, `-` floor, `@` you, `$` box, `.` target, `*` box and `+` you on one.
"""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.environments import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.environments.search import shortest
from toolwright.failures import UserError
from toolwright.trajectory import Task

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Place = tuple[int, int]
State = tuple[Place, frozenset[Place]]  # where you are, where the boxes are


@ENVIRONMENTS.register("sokoban")
class Sokoban:
    """A box that comes home earns its share of 1, and loses it when it is pushed off again."""

    inline = True
    actions = tuple(MOVES)

    def __init__(self, level: str) -> None:
        self.rows = level.split("\n")
        cells = {(r, c): mark for r, row in enumerate(self.rows) for c, mark in enumerate(row)}
        here = [place for place, mark in cells.items() if mark in "@+"]
        boxes = frozenset(place for place, mark in cells.items() if mark in "$*")
        self.targets = frozenset(place for place, mark in cells.items() if mark in ".*+")
        self.floor = frozenset(place for place, mark in cells.items() if mark != "#")
        if len(here) != 1 or not boxes or len(boxes) != len(self.targets):
            raise UserError("a sokoban level needs one @ and as many boxes $ as targets .")
        self.state: State = here[0], boxes

    def reset(self, task: Task) -> Observation:
        return Observation(self._shown(), self.anchor)

    def step(self, action: str) -> Outcome:
        wanted = action.strip().lower()
        named = [name for name in MOVES if wanted in (name, name[0])]
        if not named:
            raise InvalidAction(f"{wanted[:20]!r} is no move: say {', '.join(MOVES)}")
        before = self._home()
        self.state = self._moved(self.state, MOVES[named[0]])
        reward, won = (self._home() - before) / len(self.targets), self.state[1] == self.targets
        return Outcome(self._shown(), reward, won, self.anchor, {"success": won})

    def close(self) -> None:
        pass

    @property
    def anchor(self) -> str:
        return self._shown()

    def solution(self) -> list[str] | None:
        """The shortest way from here; None where a box is stuck for good."""
        return shortest(self.state, self._moves, lambda state: state[1] == self.targets)

    def _moves(self, state: State) -> Iterator[tuple[str, State]]:
        for name, move in MOVES.items():
            yield name, self._moved(state, move)

    def _moved(self, state: State, move: Place) -> State:
        """Against a wall, or a box that something is behind, one stays where one is."""
        (row, column), boxes = state
        place, beyond = (row + move[0], column + move[1]), (row + 2 * move[0], column + 2 * move[1])
        if place not in self.floor:
            return state
        if place not in boxes:
            return place, boxes
        if beyond not in self.floor or beyond in boxes:
            return state
        return place, boxes - {place} | {beyond}

    def _home(self) -> int:
        return len(self.state[1] & self.targets)

    def _shown(self) -> str:
        return "\n".join(
            "".join(self._mark((r, c)) for c in range(len(row))) for r, row in enumerate(self.rows)
        )

    def _mark(self, place: Place) -> str:
        if place not in self.floor:
            return "#"
        here, boxes = self.state
        on_target = place in self.targets
        if place == here:
            return "+" if on_target else "@"
        if place in boxes:
            return "*" if on_target else "$"
        return "." if on_target else "-"
