"""A grid world's levels: rooms in a row, a locked door between neighbours, its key somewhere before it."""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from toolwright.environments.builtin.gridworld import GridWorld, View
from toolwright.failures import UserError
from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.worlds import Noise, task_set

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
    seed: int,
    train_size: int | None,
    held_out_size: int,
    width: Annotated[int, Field(ge=2, le=30)] = 5,
    height: Annotated[int, Field(ge=2, le=30)] = 3,
    doors: Annotated[int, Field(ge=0, le=4)] = 1,
    walls: Annotated[float, Field(ge=0, le=0.5)] = 0.0,
    min_steps: Annotated[int, Field(ge=1)] = 3,
    max_steps: Annotated[int, Field(ge=1)] = 200,
    view: View = "map",
    instructions: str = INSTRUCTIONS,
    action_tag: str | None = None,
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
        return {"level": drawn, "view": view}

    return task_set(
        "gridworld",
        level,
        seed=seed,
        train_size=train_size,
        held_out_size=held_out_size,
        instructions=instructions,
        action_tag=action_tag,
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
