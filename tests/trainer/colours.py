"""A task that only a policy with eyes can learn: the colour of a square, by its first letter."""

from __future__ import annotations

import random
from typing import Any

from pictures import asks
from PIL import Image

from toolwright.images import data_url
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task

COLOURS = {"r": (220, 30, 30), "g": (30, 200, 40), "b": (40, 60, 220), "w": (240, 240, 240)}
SIDE = 32  # pixels


def tasks(*, seed: int, held_out_size: int, train_size: int | None = None) -> TaskSet:
    places = [(x, y) for x in range(0, SIDE, 4) for y in range(0, SIDE, 4) if max(x, y) < SIDE - 16]
    every = [(letter, x, y) for letter in COLOURS for x, y in places]
    random.Random(seed).shuffle(every)
    made = [_task(*one) for one in every]
    return TaskSet(
        train=made[held_out_size:][:train_size],
        held_out=made[:held_out_size],
        scorer="exact",
        alphabet="".join(COLOURS),
        demonstrate=_guess,
    )


def _guess(task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """Any colour: what a square has to do with it is left to learn."""
    return [{"role": "assistant", "content": rng.choice("".join(COLOURS))}]


def _task(letter: str, x: int, y: int) -> Task:
    import io

    image = Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    image.paste(COLOURS[letter], (x, y, x + 16, y + 16))
    file = io.BytesIO()
    image.save(file, "PNG")
    prompt = asks("?", data_url(file.getvalue()))
    return Task(id=f"{letter}{x}.{y}", prompt=prompt, ground_truth=letter, data_source="colours")
