"""String reversal: `abc|` is answered by `cba`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.demonstration import ErrorRate
from toolwright.tasks.strings import Strings


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
    return Strings(alphabet, min_length, max_length, mark="|").task_set(
        "reverse",
        lambda string: string[::-1],
        seed=seed,
        train_size=train_size,
        held_out_size=held_out_size,
        error_rate=error_rate,
    )
