"""A grid world with keys and doors: a key is taken by walking onto it, its door opens to who holds it.

A level is a drawing: `#` wall, `.` floor, `@` you, `a b …` keys, `A B …` their doors, `*` the goal.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.environment import ENVIRONMENTS, InvalidAction, Observation, Outcome
from toolwright.tasks.worlds import InvalidPenalty, Noise, shortest, task_set
from toolwright.trajectory import Task

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
View = Literal["map", "words", "signs", "place"]
TERSE = ("signs", "place")
Place = tuple[int, int]
State = tuple[Place, frozenset[str]]  # where you are, which keys you hold: all that ever changes


@ENVIRONMENTS.register("gridworld")
class GridWorld:
    """`view`: the whole `map` every time, what is around in `words`, the same in a few `signs`, or only the
    `place`, row, column and keys held, for who knows the level or is to learn it by heart. A key earns
    `key_reward` when it is taken, the goal the rest of 1."""

    inline = True

    def __init__(self, level: str, view: View = "map", key_reward: float = 0.0) -> None:
        if view not in get_args(View):
            raise UserError(f"gridworld: view={view!r} must be one of {', '.join(get_args(View))}")
        self.view, self.key_reward = view, key_reward
        self.rows = level.split("\n")
        cells = {(r, c): mark for r, row in enumerate(self.rows) for c, mark in enumerate(row)}
        here = [place for place, mark in cells.items() if mark == "@"]
        if len(here) != 1 or "*" not in cells.values():
            raise UserError("a gridworld level needs one @ and a goal *")
        self.cells = {place: "." if mark == "@" else mark for place, mark in cells.items() if mark != "#"}
        self.state: State = here[0], frozenset()
        self.actions = [name[0] for name in MOVES] if view in TERSE else list(MOVES)

    def reset(self, task: Task) -> Observation:
        return Observation(self._shown(), self.anchor)

    def step(self, action: str) -> Outcome:
        move = action.strip().lower()
        named = [name for name in MOVES if move in (name, name[0])]
        if not named:
            refused = "" if self.view in TERSE else f"{move[:20]!r} is not a move: "
            raise InvalidAction(f"{refused}say {', '.join(self.actions)}")
        held = len(self.state[1])
        self.state = self._moved(self.state, MOVES[named[0]])
        won = self.cells[self.state[0]] == "*"
        rest = 1.0 - self.key_reward * sum(mark.islower() for mark in self.cells.values())
        reward = self.key_reward * (len(self.state[1]) - held) + rest * won
        return Outcome(self._shown(), reward, won, self.anchor, {"success": won})

    @property
    def anchor(self) -> str:
        (row, column), keys = self.state
        return f"{row},{column} {''.join(sorted(keys))}"

    def solution(self) -> list[str] | None:
        """The shortest way from here."""
        moves = list(zip(self.actions, MOVES.values(), strict=True))
        return shortest(
            self.state,
            lambda state: [(action, self._moved(state, move)) for action, move in moves],
            lambda state: self.cells[state[0]] == "*",
        )

    def _moved(self, state: State, move: Place) -> State:
        """A step into a wall or a closed door changes nothing."""
        (row, column), keys = state
        place = row + move[0], column + move[1]
        mark = self.cells.get(place, "#")
        if mark == "#" or (mark.isupper() and mark.lower() not in keys):
            return state
        return place, keys | {mark} if mark.islower() else keys

    def _mark(self, place: Place) -> str:
        """The sign of a cell now: a key that is held is gone, and its door is open."""
        mark = self.cells.get(place, "#")
        return "." if mark.lower() in self.state[1] else mark

    def _shown(self) -> str:
        if self.view == "map":
            here, keys = self.state
            rows = (
                "".join("@" if (r, c) == here else self._mark((r, c)) for c in range(len(row)))
                for r, row in enumerate(self.rows)
            )
            return "\n".join(rows) + (f"\nYou hold {', '.join(sorted(keys))}." if keys else "")
        if self.view == "place":
            (row, column), keys = self.state
            return f"{row},{column}{''.join(sorted(keys))}"
        around = [self._mark((self.state[0][0] + r, self.state[0][1] + c)) for r, c in MOVES.values()]
        if self.view == "signs":
            return "".join(around) + "".join(f" {mark}{way}" for mark, way in self._ways(""))
        seen = ". ".join(f"{name}: {_NAMES.get(m, m)}" for name, m in zip(MOVES, around, strict=True))
        far = "".join(f". {_NAMES.get(m, m)} is {way or 'here'}" for m, way in self._ways(" "))
        return f"{seen}{far}."

    def _ways(self, space: str) -> Iterator[tuple[str, str]]:
        """Directions to the goal, to the keys not held yet, and to the doors that held keys open."""
        (row, column), keys = self.state
        for place, mark in sorted(self.cells.items(), key=lambda cell: cell[1]):
            if mark == "*" or (mark.isalpha() and mark.isupper() == (mark.lower() in keys)):
                down, right = place[0] - row, place[1] - column
                ways = (down, "down" if down > 0 else "up"), (right, "right" if right > 0 else "left")
                parts = [f"{abs(n)}{space}{name if space else name[0]}" for n, name in ways if n]
                yield mark, (" and " if space else "").join(parts)


_NAMES = {"#": "wall", ".": "floor", "*": "the goal"} | {
    mark: name for key in "abcd" for mark, name in ((key, f"key {key}"), (key.upper(), f"door {key.upper()}"))
}


INSTRUCTIONS = (
    "Walk to the goal * on a grid. Every turn you say one move: up, down, left or right. # is a wall, . is "
    "floor. A key, a lower-case letter, is yours once you step on it, and opens the door of its letter."
)
SHOWN = (
    "#.@*abcdABCD\n 0123456789,:'" + "up down left right wall floor the goal is here and key door You hold"
)


@TASKS.register("gridworld")
def gridworld(
    *,
    sizes: SplitSizes,
    width: Annotated[int, Field(ge=2, le=30)] = 5,
    height: Annotated[int, Field(ge=2, le=30)] = 3,
    doors: Annotated[int, Field(ge=0, le=4)] = 1,
    walls: Annotated[float, Field(ge=0, le=0.5)] = 0.0,
    min_steps: Annotated[int, Field(ge=1)] = 3,
    max_steps: Annotated[int, Field(ge=1)] = 200,
    view: View = "map",
    key_reward: Annotated[float, Field(ge=0, le=0.25)] = 0.0,
    instructions: str = INSTRUCTIONS,
    action_tag: str | None = None,
    invalid_penalty: InvalidPenalty = 0.0,
    noise: Noise = 0.0,
) -> TaskSet:
    """`width` and `height` are those of the floor; `min_steps` to `max_steps` those of the shortest way.
    `view=signs` and `instructions=""` suit a tiny model that reads character by character."""
    if width < 3 * doors + 1:
        raise UserError(f"task.params.width={width} must be at least 3 × doors + 1 = {3 * doors + 1}")

    def level(rng: random.Random) -> dict[str, Any] | None:
        drawn = draw(rng, width=width, height=height, doors=doors, walls=walls)
        way = GridWorld(drawn, "map").solution()
        if way is None or not min_steps <= len(way) <= max_steps:
            return None
        return {"level": drawn, "view": view, **({"key_reward": key_reward} if key_reward else {})}

    return task_set(
        "gridworld",
        level,
        sizes=sizes,
        instructions=instructions,
        action_tag=action_tag,
        invalid_penalty=invalid_penalty,
        noise=noise,
        alphabet=SHOWN,
        max_demonstration=3 * min(max_steps, width * height * (doors + 1)),
    )


def draw(rng: random.Random, *, width: int, height: int, doors: int, walls: float) -> str:
    """A level, solvable unless walls stand in the way; mirrored at random, so that doors may lead left."""
    grid = [["." for _ in range(width)] for _ in range(height)]
    # Between two walls, and before the first and behind the last, there are two columns or more.
    slack = sorted(rng.randint(0, width - 3 * doors - 1) for _ in range(doors))
    columns = [3 * number + 1 + extra for number, extra in enumerate(slack)]
    rooms = [0, *(column + 1 for column in columns)], [*columns, width]
    for number, column in enumerate(columns):
        for row in grid:
            row[column] = "#"
        grid[rng.randrange(height)][column] = "ABCD"[number]
    keys = [("abcd"[number], rng.randint(0, number)) for number in range(doors)]
    for mark, room in [*keys, ("@", 0), ("*", doors)]:
        free = [
            (r, c) for r in range(height) for c in range(rooms[0][room], rooms[1][room]) if grid[r][c] == "."
        ]
        if not free:
            return "@*"  # too small for all that; one step long, so that no limit lets it through
        r, c = rng.choice(free)
        grid[r][c] = mark
    for row in grid:
        for c, mark in enumerate(row):
            if mark == "." and rng.random() < walls:
                row[c] = "#"
    rows = ["".join(row) for row in grid]
    if rng.random() < 0.5:
        rows = [row[::-1] for row in rows]
    if rng.random() < 0.5:
        rows = ["".join(column) for column in zip(*rows, strict=True)]
    edge = "#" * (len(rows[0]) + 2)
    return "\n".join([edge, *(f"#{row}#" for row in rows), edge])
