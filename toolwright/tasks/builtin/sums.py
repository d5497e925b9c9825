"""Sums in words: `What is 37 times 48?` is more than a small model can do in its head, not for Python."""

from __future__ import annotations

import random
import string
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.generated import ErrorRate, generate, parse
from toolwright.trajectory import Task

FORMS = (
    ("What is {a} plus {b}?", "{a}+{b}"),
    ("What is {a} minus {b}?", "{a}-{b}"),
    ("What is {a} times {b}?", "{a}*{b}"),
    ("Add {a} to {b}.", "{b}+{a}"),
    ("Take {a} from {b}.", "{b}-{a}"),
    ("Multiply {a} by {b}.", "{a}*{b}"),
)

# Shown before the question, as a small model must be that has never seen a tool.
EXAMPLES = (
    ("What is 12 plus 30?", "print(12+30)", "42"),
    ("Multiply 40 by 11.", "print(40*11)", "440"),
    ("Take 15 from 90.", "print(90-15)", "75"),
)


@TASKS.register("sums")
def sums(
    *,
    sizes: SplitSizes,
    min_operand: Annotated[int, Field(ge=0)] = 10,
    max_operand: Annotated[int, Field(le=10**9)] = 999,
    guess_rate: ErrorRate = 0.0,
    error_rate: ErrorRate = 0.0,
    examples: Annotated[int, Field(ge=0, le=len(EXAMPLES))] = 0,
) -> TaskSet:
    """Harder with larger operands. Of the demonstrations, `guess_rate` answer without the tool, which is
    wrong, and `error_rate` of the others hand it a wrong operator. `examples` of calls in tags stand before
    the question."""
    if max_operand <= min_operand:
        raise UserError(f"task.params.max_operand={max_operand} must be above min_operand={min_operand}")
    values = max_operand - min_operand + 1
    shown = [message for example in EXAMPLES[:examples] for message in _shown(*example)]

    def task(form: int, index: int) -> Task:
        first, second = divmod(index, values)
        question, expression = (
            text.format(a=min_operand + first, b=min_operand + second) for text in FORMS[form]
        )
        return Task(
            id=f"sums:{question}",
            prompt=[*shown, {"role": "user", "content": question}],
            ground_truth=str(_worth(expression)),
            data_source="sums",
            extra_info={"expression": expression},
        )

    def demonstrate(task: Task, rng: random.Random) -> list[dict[str, Any]]:
        if rng.random() < guess_rate:
            return [{"role": "assistant", "content": f"I think {rng.randint(min_operand, max_operand**2)}"}]
        expression = task.extra_info["expression"]
        if rng.random() < error_rate:
            used = next(operator for operator in "+-*" if operator in expression)
            expression = expression.replace(used, rng.choice([o for o in "+-*" if o != used]))
        return _calling(f"print({expression})", str(_worth(expression)))

    train, held_out = generate([values**2] * len(FORMS), task, sizes)
    return TaskSet(
        train=train,
        held_out=held_out,
        scorer="numeric",
        # All of ASCII: what Python answers to a program that is none has every kind of character in it.
        alphabet=string.printable[:95] + "\n",
        demonstrate=demonstrate,
    )


def _shown(question: str, code: str, printed: str) -> list[dict[str, str]]:
    answer = f"<tool>{code}</tool><result>{printed}</result>{printed}"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _calling(code: str, printed: str) -> list[dict[str, Any]]:
    function = {"name": "python", "arguments": {"code": code}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "name": "python", "content": printed},
        {"role": "assistant", "content": printed},
    ]


def _worth(expression: str) -> Any:
    parsed = parse(expression)
    assert parsed is not None, expression  # ours, not the user's
    return parsed[0]
