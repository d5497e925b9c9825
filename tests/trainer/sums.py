"""A task that a tool makes easy: sums, with demonstrations that call the calculator. Loaded by path."""

from __future__ import annotations

import random
import time
from typing import Any

from toolwright.failures import InfrastructureFailure
from toolwright.rewards import SCORERS
from toolwright.tasks import TaskSet
from toolwright.trajectory import Task


@SCORERS.register("sums")
def last_number_is_right(solution_str: str, ground_truth: str) -> float:
    return float(solution_str.endswith(f"</result>{ground_truth}"))


def demonstrate(task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """The third message is the tool's: it is seen and not learned."""
    asked = task.prompt[0]["content"]
    return [
        {"role": "assistant", "content": f"<tool>{asked}</tool>"},
        {"role": "tool", "content": task.ground_truth},
        {"role": "assistant", "content": task.ground_truth},
    ]


def tasks(*, held_out_size: int) -> TaskSet:
    made = [
        Task(f"{a}+{b}", [{"role": "user", "content": f"{a}+{b}"}], ground_truth=str(a + b))
        for a in range(4)
        for b in range(4)
    ]
    return TaskSet(
        train=made,
        held_out=made[:held_out_size],
        scorer="sums",
        alphabet="0123456789+<>/toolresult",
        demonstrate=demonstrate,
    )


class Away:
    """A calculator whose server is away until a moment.

    Args:
        expression: a sum
    """

    def __init__(self, back: float) -> None:
        self.back = back

    def __call__(self, expression: str) -> str:
        if time.time() < self.back:
            raise InfrastructureFailure("no answer from http://sums:80")
        return str(sum(map(int, expression.split("+"))))
