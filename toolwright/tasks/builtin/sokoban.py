"""Sokoban's levels, made by playing backwards: boxes start at home and are pulled away from it."""

from __future__ import annotations

import random
from typing import Annotated, Any

from pydantic import Field

from toolwright.environments.builtin.sokoban import MOVES, Place, Sokoban
from toolwright.failures import UserError
from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.worlds import Noise, task_set

INSTRUCTIONS = (
    "Push every box $ onto a target. Every turn you say one move: up, down, left or right. You are @, # is a "
    "wall, - is floor, . a target, * a box on a target, + you on one. Boxes cannot be pulled."
)


@TASKS.register("sokoban")
def sokoban(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    size: Annotated[int, Field(ge=3, le=10)] = 4,
    boxes: Annotated[int, Field(ge=1, le=4)] = 1,
    walls: Annotated[float, Field(ge=0, le=0.5)] = 0.1,
    pulls: Annotated[int, Field(ge=1, le=200)] = 20,
    min_steps: Annotated[int, Field(ge=1)] = 3,
    max_steps: Annotated[int, Field(ge=1)] = 30,
    instructions: str = INSTRUCTIONS,
    action_tag: str | None = None,
    noise: Noise = 0.0,
) -> TaskSet:
    """`size` × `size` of floor; `min_steps` to `max_steps` of the shortest solution."""
    if boxes * 3 > size * size:
        raise UserError(f"task.params: {boxes} boxes have no room to move in size={size}")

    def level(rng: random.Random) -> dict[str, Any] | None:
        drawn = draw(rng, size=size, boxes=boxes, walls=walls, pulls=pulls)
        way = Sokoban(drawn).solution() if drawn else None
        return {"level": drawn} if way is not None and min_steps <= len(way) <= max_steps else None

    return task_set(
        "sokoban",
        level,
        seed=seed,
        train_size=train_size or 256,
        held_out_size=held_out_size,
        instructions=instructions,
        action_tag=action_tag,
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
    """One step backwards; a box that stood in front comes along, as often as not."""
    row, column = here
    down, right = rng.choice(list(MOVES.values()))
    back, front = (row - down, column - right), (row + down, column + right)
    if back not in floor or back in boxes:
        return here, boxes
    if front in boxes and rng.random() < 0.7:
        return back, boxes - {front} | {here}
    return back, boxes
