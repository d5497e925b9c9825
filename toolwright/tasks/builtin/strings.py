"""Tasks over all strings of some lengths: `reverse` and `sort`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.demonstration import ErrorRate, answering
from toolwright.tasks.space import generate
from toolwright.trajectory import Task

LONGEST = 256


@dataclass(frozen=True)
class Strings:
    alphabet: str
    min_length: int
    max_length: int
    mark: str  # the character that ends a prompt, and so cannot be in a string

    def __post_init__(self) -> None:
        if len(set(self.alphabet)) < max(2, len(self.alphabet)):
            raise UserError(
                f"task.params.alphabet={self.alphabet!r} must be at least two different characters"
            )
        if self.mark in self.alphabet or any(c.isspace() for c in self.alphabet):
            raise UserError(
                f"task.params.alphabet={self.alphabet!r} may hold neither spaces nor {self.mark!r}, "
                "which ends the prompt"
            )
        if not self.min_length <= self.max_length <= LONGEST:
            raise UserError(
                f"task.params: the lengths must be min_length={self.min_length} <= "
                f"max_length={self.max_length} <= {LONGEST}"
            )

    @property
    def strata(self) -> list[int]:
        """The number of strings of each length."""
        return [len(self.alphabet) ** n for n in range(self.min_length, self.max_length + 1)]

    def string(self, stratum: int, index: int) -> str:
        characters = []
        for _ in range(self.min_length + stratum):
            index, place = divmod(index, len(self.alphabet))
            characters.append(self.alphabet[place])
        return "".join(characters)

    def task_set(
        self,
        name: str,
        answer: Callable[[str], str],
        *,
        sizes: SplitSizes,
        error_rate: float,
    ) -> TaskSet:
        """Build tasks whose prompt is a string and the mark, and whose ground truth is `answer(string)`."""

        def task(stratum: int, index: int) -> Task:
            string = self.string(stratum, index)
            return Task(
                id=f"{name}:{string}",
                prompt=[{"role": "user", "content": string + self.mark}],
                ground_truth=answer(string),
                data_source=name,
            )

        train, held_out = generate(self.strata, task, sizes)
        return TaskSet(
            train=train,
            held_out=held_out,
            scorer="exact",
            alphabet="".join(sorted({*self.alphabet, self.mark})),
            demonstrate=answering(lambda t: t.ground_truth, alphabet=self.alphabet, error_rate=error_rate),
        )


@TASKS.register("reverse")
def reverse(
    *,
    sizes: SplitSizes,
    min_length: Annotated[int, Field(ge=1)] = 3,
    max_length: Annotated[int, Field(ge=1)] = 5,
    alphabet: str = "abcdefghij",
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """`abc|` is answered by `cba`. Harder with longer strings."""
    return Strings(alphabet, min_length, max_length, mark="|").task_set(
        "reverse",
        lambda string: string[::-1],
        sizes=sizes,
        error_rate=error_rate,
    )


@TASKS.register("sort")
def sort(
    *,
    sizes: SplitSizes,
    min_length: Annotated[int, Field(ge=1)] = 3,
    max_length: Annotated[int, Field(ge=1)] = 5,
    alphabet: str = "abcdefghij",
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """`cab<` is answered by `abc`, in the order of code points. Harder with longer strings."""
    return Strings(alphabet, min_length, max_length, mark="<").task_set(
        "sort",
        lambda string: "".join(sorted(string)),
        sizes=sizes,
        error_rate=error_rate,
    )
