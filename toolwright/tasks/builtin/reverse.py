"""String reversal: `abc|` is answered by `cba`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.demonstration import ErrorRate, answering
from toolwright.tasks.space import generate
from toolwright.tasks.strings import Strings
from toolwright.trajectory import Task

MARK = "|"


@TASKS.register("reverse")
def reverse(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    min_length: Annotated[int, Field(ge=1)] = 3,
    max_length: Annotated[int, Field(ge=1)] = 5,
    alphabet: str = "abcdefghij",
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """Harder with longer strings and more characters."""
    strings = Strings(alphabet, min_length, max_length, MARK)

    def task(stratum: int, index: int) -> Task:
        string = strings.string(stratum, index)
        return Task(
            id=f"reverse:{string}",
            prompt=[{"role": "user", "content": string + MARK}],
            ground_truth=string[::-1],
            data_source="reverse",
        )

    train, held_out = generate(
        strings.strata, task, seed=seed, train_size=train_size, held_out_size=held_out_size
    )
    return TaskSet(
        train=train,
        held_out=held_out,
        scorer="exact",
        alphabet="".join(sorted({*alphabet, MARK})),
        demonstrate=answering(lambda task: task.ground_truth, alphabet=alphabet, error_rate=error_rate),
    )
