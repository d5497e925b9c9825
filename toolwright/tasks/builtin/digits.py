"""Digit sequences to continue: steps that repeat, modulo 10. `135791?` goes on with `3579`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.generated import ErrorRate, answering, generate
from toolwright.trajectory import Task

DIGITS = "0123456789"


@TASKS.register("digits")
def digits(
    *,
    sizes: SplitSizes,
    length: Annotated[int, Field(ge=2, le=64)] = 6,
    answer: Annotated[int, Field(ge=1, le=64)] = 4,
    period: Annotated[int, Field(ge=1, le=8)] = 2,
    min_step: Annotated[int, Field(ge=-9, le=9)] = 1,
    max_step: Annotated[int, Field(ge=-9, le=9)] = 9,
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """Shows `length` digits and asks for `answer` more; `period` steps repeat, so 1 is a constant step."""
    if not 0 <= max_step - min_step <= 9:
        raise UserError(
            f"task.params: min_step={min_step} to max_step={max_step} must be a range of one to ten steps, "
            "since steps are taken modulo 10"
        )
    if length <= period:
        raise UserError(
            f"task.params.length={length} does not show the whole pattern: period={period} needs "
            f"at least {period + 1} digits"
        )
    choices = max_step - min_step + 1

    def task(_: int, index: int) -> Task:
        index, digit = divmod(index, 10)
        steps = [min_step + index // choices**place % choices for place in range(period)]
        shown = ""
        for place in range(length + answer):
            shown += str(digit)
            digit = (digit + steps[place % period]) % 10
        prompt = f"{shown[:length]}?"
        return Task(
            id=f"digits:{prompt}",
            prompt=[{"role": "user", "content": prompt}],
            ground_truth=shown[length:],
            data_source="digits",
        )

    train, held_out = generate([10 * choices**period], task, sizes)
    return TaskSet(
        train=train,
        held_out=held_out,
        scorer="exact",
        alphabet=DIGITS + "?",
        demonstrate=answering(lambda task: task.ground_truth, alphabet=DIGITS, error_rate=error_rate),
    )
