"""Countdown: `3 7 12=48` asks for an expression of those numbers that is worth 48, such as `12*(7-3)`."""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Annotated, Any

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.generated import ErrorRate, answering, generate, parse
from toolwright.trajectory import Task

ANSWER = "0123456789+-*()"


@TASKS.register("countdown")
def countdown(
    *,
    sizes: SplitSizes,
    numbers: Annotated[int, Field(ge=2, le=8)] = 3,
    max_number: Annotated[int, Field(ge=2, le=1000)] = 20,
    max_target: Annotated[int, Field(ge=1)] = 100,
    error_rate: ErrorRate = 0.0,
) -> TaskSet:
    """One target for each multiset of numbers, so that held-out numbers were never seen together."""
    if max_target < numbers * max_number:
        raise UserError(
            f"task.params.max_target={max_target} must be at least numbers × max_number = "
            f"{numbers * max_number}, or some numbers could not reach any target"
        )

    def task(_: int, index: int) -> Task:
        rng = random.Random(f"countdown {sizes.seed} {index}")
        chosen = multiset(index, count=numbers)
        rng.shuffle(chosen)
        target, solution = _solvable(chosen, max_target, rng)
        prompt = f"{' '.join(map(str, chosen))}={target}"
        return Task(
            id=f"countdown:{prompt}",
            prompt=[{"role": "user", "content": prompt}],
            ground_truth={"numbers": chosen, "target": target},
            data_source="countdown",
            extra_info={"solution": solution},
        )

    train, held_out = generate(
        [math.comb(max_number + numbers - 1, numbers)],
        task,
        sizes=sizes,
    )
    return TaskSet(
        train=train,
        held_out=held_out,
        scorer="countdown",
        alphabet="".join(sorted({*ANSWER, " ", "="})),
        demonstrate=answering(
            lambda task: task.extra_info["solution"],
            alphabet=ANSWER,
            error_rate=error_rate,
            right=lambda task, text: solves(text, task.ground_truth),
        ),
    )


def solves(expression: str, ground_truth: dict[str, Any]) -> bool:
    """Return True if the expression equals the target and uses each given number at most once."""
    parsed = parse(expression)
    if parsed is None:
        return False
    value, used = parsed
    return value == ground_truth["target"] and not Counter(used) - Counter(ground_truth["numbers"])


def multiset(index: int, *, count: int) -> list[int]:
    """The index-th multiset of `count` positive numbers, by the combinatorial number system: those up to any
    number come before those with a larger one."""
    chosen = []
    for k in range(count, 0, -1):
        place = k - 1
        while math.comb(place + 1, k) <= index:
            place += 1
        index -= math.comb(place, k)
        chosen.append(place - (k - 1) + 1)  # distinct places become numbers that may repeat
    return chosen


def _solvable(numbers: list[int], max_target: int, rng: random.Random) -> tuple[int, str]:
    """A target with an expression that reaches it, from random operations on random pairs."""
    for _ in range(20):
        value, text = _combined(numbers, rng)
        if 1 <= value <= max_target and value not in numbers:
            return value, text
    return sum(numbers), "+".join(map(str, numbers))


def _combined(numbers: list[int], rng: random.Random) -> tuple[int, str]:
    parts = [(number, str(number), "") for number in numbers]  # value, text, outermost operator
    while len(parts) > 1:
        rng.shuffle(parts)
        a, b = sorted((parts.pop(), parts.pop()), reverse=True)
        operator = rng.choice("+-*")
        if operator == "+":
            parts.append((a[0] + b[0], f"{a[1]}+{b[1]}", "+"))
        elif operator == "-":
            parts.append((a[0] - b[0], f"{a[1]}-{_enclosed(b)}", "-"))
        else:
            parts.append((a[0] * b[0], f"{_enclosed(a)}*{_enclosed(b)}", "*"))
    return parts[0][0], parts[0][1]


def _enclosed(part: tuple[int, str, str]) -> str:
    """The text as a factor or a subtrahend: a sum needs parentheses there."""
    return f"({part[1]})" if part[2] in {"+", "-"} else part[1]
