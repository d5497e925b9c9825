"""Sorting of characters: `cab<` is answered by `abc`, in the order of the characters’ code points."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.demonstration import ErrorRate
from toolwright.tasks.strings import Strings


@TASKS.register("sort")
def sort(
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
    return Strings(alphabet, min_length, max_length, mark="<").task_set(
        "sort",
        lambda string: "".join(sorted(string)),
        seed=seed,
        train_size=train_size,
        held_out_size=held_out_size,
        error_rate=error_rate,
    )
