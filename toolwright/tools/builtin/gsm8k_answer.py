"""A check of an answer before it is given, as verl's `Gsm8kTool` has it."""

from __future__ import annotations

import math
import re
from typing import Any

from toolwright.tools import TOOLS
from toolwright.tools.offer import ToolError
from toolwright.trajectory import Task

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@TOOLS.register("gsm8k_answer")
class Gsm8kAnswer:
    """A tool for calculating the reward of gsm8k: 1.0 if the parsed answer is right, else 0.0.

    Args:
        answer: the answer to the question, in digits
    """

    def __init__(self, name: str = "gsm8k_answer") -> None:
        self._name = name

    async def __call__(self, answer: str, *, task: Task) -> str:
        truth = _number(str(self._truth(task)).rpartition("####")[2])
        if truth is None:
            raise ToolError("this task has no number to compare an answer with")
        found = _number(answer)
        reward = float(found is not None and math.isclose(found, truth))
        return f"Current parsed answer={answer!r} reward={reward}"

    def _truth(self, task: Task) -> Any:
        """Return the truth that a row of verl's has for this tool, or else the task's own."""
        given: Any = task.extra_info.get("tools_kwargs")
        for key in (self._name, "create_kwargs", "ground_truth"):
            given = given.get(key) if isinstance(given, dict) else None
        return task.ground_truth if given is None else given


def _number(text: str) -> float | None:
    """The last number of a text; `1,234` is one."""
    found = NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None
