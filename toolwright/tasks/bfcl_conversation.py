"""The leaderboard's conversations: a user of several turns, and simulated APIs whose state is compared."""

from __future__ import annotations

import keyword
import uuid
from collections.abc import Sequence
from typing import Any

from toolwright.tasks.bfcl import questions, schemas
from toolwright.tasks.environment import InvalidAction, Observation, Outcome, ToolCall, answers_to
from toolwright.trajectory import Task

# A power or a logarithm with more than that would hold the whole process for hours.
LARGEST = {"power": ("exponent",), "logarithm": ("precision",), "square_root": ("precision",)}
MOST = 10_000


class FunctionCallConversation:
    """Calls are run on the package's own classes, and again by its checker, which compares turn by turn."""

    def __init__(self, category: str, id: str) -> None:
        self.category, self.question = category, questions(category)[id]
        self.known = {one["name"] for one in self.question["function"]}
        self.attempt = f"attempt{uuid.uuid4().hex}"  # the package keeps instances under this name
        self.turns: list[list[list[str]]] = [[]]
        self.over = False

    def reset(self, task: Task) -> Observation:
        return Observation("", tools=schemas(self.question))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_utils import execute_multi_turn_func_call

        written = self._written(name, arguments)
        self.turns[-1].append([written])
        results, _ = execute_multi_turn_func_call(
            [written],
            self.question["initial_config"],
            self.question["involved_classes"],
            self.attempt,
            self.question["id"],
            long_context="long_context" in self.category,
        )
        return str(results[0])

    def _written(self, name: str, arguments: dict[str, Any]) -> str:
        """The call as Python, which the package evaluates: names that are known, and values of JSON alone."""
        if name not in self.known:
            raise InvalidAction("there is no such function")
        for key in arguments:
            if not key.isidentifier() or keyword.iskeyword(key):
                raise InvalidAction(f"{name} takes no argument {key!r:.80}")
        for key in LARGEST.get(name, ()):
            if isinstance(arguments.get(key), int | float) and abs(arguments[key]) > MOST:
                raise InvalidAction(f"{name}: {key} must not be above {MOST:,}")
        return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"

    def step(self, action: str, calls: Sequence[ToolCall] = ()) -> Outcome:
        if calls:
            return Outcome("", answers=answers_to(calls, self.call))
        if len(self.turns) == len(self.question["question"]):
            self.over = True
            return Outcome("", done=True)
        says = self.question["question"][len(self.turns)]
        self.turns.append([])
        return Outcome("\n".join(message["content"] for message in says))

    def verdict(self) -> Outcome:
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

        if not self.over:
            return Outcome("not all of the user's turns were answered", info={"success": False})
        truth = self.question["ground_truth"]
        found = multi_turn_checker(self.turns, truth, self.question, self.category, self.attempt)
        right = bool(found["valid"])
        return Outcome("" if right else found["error_message"], float(right), info={"success": right})

    def close(self) -> None:
        """Forget the instances, which the package keeps among the globals of a module."""
        from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils

        for name in [name for name in list(vars(multi_turn_utils)) if name.startswith(self.attempt)]:
            vars(multi_turn_utils).pop(name, None)
