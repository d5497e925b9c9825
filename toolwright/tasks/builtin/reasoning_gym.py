"""reasoning-gym's puzzles, made when a run starts and judged by the package's own scorers."""

from __future__ import annotations

import json
import random
from typing import Annotated, Any

from pydantic import Field

from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.builtin.file import characters_of, file, task_of_row
from toolwright.tasks.datasets import task_rows
from toolwright.tasks.datasets.reasoning_gym import TEN, generate
from toolwright.trajectory import Task

PUZZLES = 3000


@TASKS.register("reasoning_gym")
def reasoning_gym(
    *,
    sizes: SplitSizes,
    train: str | list[str] | None,
    held_out: str | list[str] | None,
    dataset: str | list[str] = TEN,
    levels: Annotated[int, Field(gt=0)] = 3,
    config: dict[str, Any] | None = None,
) -> TaskSet:
    """`dataset`: names of its data sets, in equal shares. `levels`: how many steps of the package's own
    curriculum each is made of, the easiest first. `config`: settings of the data set itself, in place of
    levels. Files of `data prepare reasoning-gym` are read where `train` or `held_out` names them."""
    if train or held_out:
        return file(sizes=sizes, train=train, held_out=held_out)
    made = generate(
        seed=sizes.seed,
        train=sizes.train or PUZZLES,
        test=sizes.held_out,
        kinds=dataset if isinstance(dataset, str) else ",".join(dataset),
        levels=1 if config else levels,
        config=config,
    )
    tasks = {
        split: [
            task_of_row(row, id=f"reasoning_gym:{split}:{number}", where=f"puzzle {number}")
            for number, row in enumerate(task_rows("reasoning-gym", rows, split=split))
        ]
        for split, rows in made.items()
    }
    every = [*tasks["train"], *tasks["test"]]
    alphabet = "".join(sorted(set().union(*(characters_of(task) for task in every))))
    return TaskSet(
        tasks["train"], tasks["test"], scorer="reasoning_gym", alphabet=alphabet, demonstrate=_answered
    )


def _answered(task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """The answer that the package has for the puzzle, without a way to it."""
    return [{"role": "assistant", "content": f"<answer>{json.loads(task.ground_truth)['answer']}</answer>"}]
