"""Arithmetic: `7+5=` is answered by `12`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.generated import ErrorRate, answering, generate, parse
from toolwright.trajectory import Task

DIGITS = "0123456789"


@TASKS.register("arithmetic")
def arithmetic(
    *,
    sizes: SplitSizes,
    operators: str = "+",
    min_operand: Annotated[int, Field(ge=0)] = 0,
    max_operand: Annotated[int, Field(le=10**9)] = 99,
    terms: Annotated[int, Field(ge=2, le=8)] = 2,
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """Harder with larger operands, more operators and more terms."""
    if max_operand <= min_operand:
        raise UserError(f"task.params.max_operand={max_operand} must be above min_operand={min_operand}")
    if not operators or not set(operators) <= set("+-*"):
        raise UserError(f"task.params.operators={operators!r} must be one or more of + - *")
    operators = "".join(sorted(set(operators)))
    values = max_operand - min_operand + 1

    def task(_: int, index: int) -> Task:
        index, operand = divmod(index, values)
        expression = str(min_operand + operand)
        for _ in range(terms - 1):
            index, which = divmod(index, len(operators))
            index, operand = divmod(index, values)
            expression += operators[which] + str(min_operand + operand)
        parsed = parse(expression)
        assert parsed is not None, expression  # ours, not the user's
        prompt = f"{expression}="
        return Task(
            id=f"arithmetic:{prompt}",
            prompt=[{"role": "user", "content": prompt}],
            ground_truth=str(parsed[0]),
            data_source="arithmetic",
        )

    size = values**terms * len(operators) ** (terms - 1)
    train, held_out = generate([size], task, sizes)
    sign = "-" if "-" in operators else ""
    return TaskSet(
        train=train,
        held_out=held_out,
        scorer="numeric",
        alphabet="".join(sorted({*DIGITS, *operators, *sign, "="})),
        demonstrate=answering(lambda task: task.ground_truth, alphabet=DIGITS, error_rate=error_rate),
    )
