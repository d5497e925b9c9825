"""Sokoban: boxes are pushed onto targets and can never be pulled, so that a push may be one too many.

A level is drawn as everywhere: `#` wall, `-` floor, `@` you, `$` box, `.` target, `*` box and `+` you on one.
Or it is shown as an image, in which each of these is a square of its own colours.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import UserError
from toolwright.images import encoded
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, Noise, shortest, task_set
from toolwright.trajectory import Task

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
Place = tuple[int, int]
State = tuple[Place, frozenset[Place]]  # where you are, where the boxes are
WALL, FLOOR, YOU, BOX, TARGET = (110, 110, 110), (30, 30, 30), (60, 190, 60), (200, 150, 60), (220, 50, 50)
# The colour of a square, and of the smaller one in its middle.
COLOURS = {
    "#": (WALL, WALL),
    "-": (FLOOR, FLOOR),
    ".": (FLOOR, TARGET),
    "@": (YOU, YOU),
    "+": (YOU, TARGET),
    "$": (BOX, BOX),
    "*": (BOX, TARGET),
}
SQUARE, MIDDLE = 32, slice(10, 22)  # pixels


@ENVIRONMENTS.register("sokoban")
class Sokoban:
    """A box that comes home earns its share of 1, and loses it when it is pushed off again.

    With `images`, the level is shown as an image alone.
    """

    inline = True
    actions = tuple(MOVES)

    def __init__(self, level: str, images: bool = False) -> None:
        self.rows, self.images = level.split("\n"), images
        cells = {(r, c): mark for r, row in enumerate(self.rows) for c, mark in enumerate(row)}
        here = [place for place, mark in cells.items() if mark in "@+"]
        boxes = frozenset(place for place, mark in cells.items() if mark in "$*")
        self.targets = frozenset(place for place, mark in cells.items() if mark in ".*+")
        self.floor = frozenset(place for place, mark in cells.items() if mark != "#")
        if len(here) != 1 or not boxes or len(boxes) != len(self.targets):
            raise UserError("a sokoban level needs one @ and as many boxes $ as targets .")
        self.state: State = here[0], boxes

    def reset(self, task: Task) -> Observation:
        text, images = self._view()
        return Observation(text, self.anchor, images=images)

    def step(self, action: str) -> Outcome:
        move = action.strip().lower()
        named = [name for name in MOVES if move in (name, name[0])]
        if not named:
            raise InvalidAction(f"{move[:20]!r} is not a move: say {', '.join(MOVES)}")
        before = self._home()
        self.state = self._moved(self.state, MOVES[named[0]])
        reward, won = (self._home() - before) / len(self.targets), self.state[1] == self.targets
        text, images = self._view()
        return Outcome(text, reward, won, self.anchor, {"success": won}, images=images)

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
        """A step into a wall, or against a box that cannot move, changes nothing."""
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

    def _view(self) -> tuple[str, list[bytes]]:
        """Return what the policy sees: text or an image."""
        return ("The level now:", [self._picture()]) if self.images else (self._shown(), [])

    def _picture(self) -> bytes:
        import numpy as np

        marks = [list(row) for row in self._shown().split("\n")]
        whole = np.array([[COLOURS[mark][0] for mark in row] for row in marks], np.uint8)
        inner = np.array([[COLOURS[mark][1] for mark in row] for row in marks], np.uint8)
        squares = np.broadcast_to(
            whole[:, None, :, None], (len(marks), SQUARE, len(marks[0]), SQUARE, 3)
        ).copy()
        squares[:, MIDDLE, :, MIDDLE] = inner[:, None, :, None]
        return encoded(squares.reshape(len(marks) * SQUARE, -1, 3))

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


INSTRUCTIONS = (
    "Push every box $ onto a target. Every turn you say one move: up, down, left or right. You are @, # is a "
    "wall, - is floor, . a target, * a box on a target, + you on one. Boxes cannot be pulled."
)
SEEN = (
    "Push every yellow box onto a red target. Every turn you say one move: up, down, left or right. You are "
    "green, walls are grey, floor is black; a box or you on a target show red in the middle. Boxes cannot be "
    "pulled."
)


@TASKS.register("sokoban")
def sokoban(
    *,
    sizes: SplitSizes,
    size: Annotated[int, Field(ge=3, le=10)] = 4,
    boxes: Annotated[int, Field(ge=1, le=4)] = 1,
    walls: Annotated[float, Field(ge=0, le=0.5)] = 0.1,
    pulls: Annotated[int, Field(ge=1, le=200)] = 20,
    min_steps: Annotated[int, Field(ge=1)] = 3,
    max_steps: Annotated[int, Field(ge=1)] = 30,
    images: bool = False,
    instructions: str | None = None,
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
    noise: Noise = 0.0,
) -> TaskSet:
    """`size` × `size` of floor; `min_steps` to `max_steps` of the shortest solution; shown as text, or as
    `images`."""
    if boxes * 3 > size * size:
        raise UserError(f"task.params: {boxes} boxes have no room to move in size={size}")

    def level(rng: random.Random) -> dict[str, Any] | None:
        drawn = draw(rng, size=size, boxes=boxes, walls=walls, pulls=pulls)
        way = Sokoban(drawn).solution() if drawn else None
        if way is None or not min_steps <= len(way) <= max_steps:
            return None
        return {"level": drawn, "images": True} if images else {"level": drawn}

    return task_set(
        "sokoban",
        level,
        sizes=replace(sizes, train=sizes.train or 256),
        instructions=(SEEN if images else INSTRUCTIONS) if instructions is None else instructions,
        action_tag=action_tag,
        invalid_penalty=invalid_penalty,
        noise=noise,
        alphabet="#-@$.*+\nup down left right",
        max_demonstration=2 * max_steps,
    )


def draw(rng: random.Random, *, size: int, boxes: int, walls: float, pulls: int) -> str | None:
    """A level that pulling has led to, so that pushing leads back; None where a box never moved."""
    floor = {(r, c) for r in range(1, size + 1) for c in range(1, size + 1) if rng.random() >= walls}
    if len(floor) < 2 * boxes + 1:
        return None
    *targets, here = rng.sample(sorted(floor), boxes + 1)
    placed = set(targets)
    for _ in range(pulls * 4):
        here, placed = _pull(rng, floor, here, placed)
    if placed & set(targets):
        return None
    marks = dict.fromkeys(floor, "-")
    marks |= dict.fromkeys(targets, ".") | dict.fromkeys(placed, "$")
    marks[here] = "+" if here in targets else "@"
    span = range(size + 2)
    return "\n".join("".join(marks.get((r, c), "#") for c in span) for r in span)


def _pull(rng: random.Random, floor: set[Place], here: Place, boxes: set[Place]) -> tuple[Place, set[Place]]:
    """Take one step backwards. A box in front is usually pulled along."""
    row, column = here
    down, right = rng.choice(list(MOVES.values()))
    back, front = (row - down, column - right), (row + down, column + right)
    if back not in floor or back in boxes:
        return here, boxes
    if front in boxes and rng.random() < 0.7:
        return back, boxes - {front} | {here}
    return back, boxes
