"""Tasks over all strings of some lengths: `reverse` and `sort`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, Builder, SplitSizes, TaskSet
from toolwright.tasks.generated import ErrorRate, answering, generate
from toolwright.trajectory import Task

LONGEST = 256


def string_task(name: str, mark: str, answer: Callable[[str], str]) -> Builder:
    """A task whose prompt is a string and the mark, and whose ground truth is `answer(string)`."""

    def tasks(
        *,
        sizes: SplitSizes,
        min_length: Annotated[int, Field(ge=1)] = 3,
        max_length: Annotated[int, Field(ge=1)] = 5,
        alphabet: str = "abcdefghij",
        error_rate: ErrorRate = 0.0,
    ) -> TaskSet:
        """Harder with longer strings."""
        if len(set(alphabet)) < max(2, len(alphabet)):
            raise UserError(f"task.params.alphabet={alphabet!r} must be at least two different characters")
        if mark in alphabet or any(character.isspace() for character in alphabet):
            raise UserError(
                f"task.params.alphabet={alphabet!r} may hold neither spaces nor {mark!r}, which ends the "
                "prompt"
            )
        if not min_length <= max_length <= LONGEST:
            raise UserError(
                f"task.params: expected min_length={min_length} <= max_length={max_length} <= {LONGEST}"
            )

        def task(stratum: int, index: int) -> Task:
            characters = []
            for _ in range(min_length + stratum):
                index, place = divmod(index, len(alphabet))
                characters.append(alphabet[place])
            string = "".join(characters)
            return Task(
                id=f"{name}:{string}",
                prompt=[{"role": "user", "content": string + mark}],
                ground_truth=answer(string),
                data_source=name,
            )

        strings_of_each_length = [len(alphabet) ** length for length in range(min_length, max_length + 1)]
        train, held_out = generate(strings_of_each_length, task, sizes)
        return TaskSet(
            train=train,
            held_out=held_out,
            scorer="exact",
            alphabet="".join(sorted({*alphabet, mark})),
            demonstrate=answering(lambda task: task.ground_truth, alphabet=alphabet, error_rate=error_rate),
        )

    return tasks


# `abc|` is answered by `cba`, and `cab<` by `abc`, in the order of code points.
TASKS.register("reverse")(string_task("reverse", "|", lambda string: string[::-1]))
TASKS.register("sort")(string_task("sort", "<", lambda string: "".join(sorted(string))))
