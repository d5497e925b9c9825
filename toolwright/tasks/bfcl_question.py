"""The leaderboard's questions of one turn: calls are compared with those that are possible."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from toolwright.tasks.bfcl import Question, questions, schemas
from toolwright.tasks.environment import InvalidAction, Observation, Outcome, ToolCall, answers_to
from toolwright.trajectory import Task

NAME = "toolwright"  # under which the checker knows the policy


class FunctionCallQuestion:
    """Calls are noted, not run."""

    def __init__(self, category: str, id: str) -> None:
        self.category, self.question = category, questions(category)[id]
        self.calls: list[dict[str, dict[str, Any]]] = []

    def reset(self, task: Task) -> Observation:
        return Observation("", tools=schemas(self.question))

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls.append({name: arguments})
        if all(name != one["name"] for one in self.question["function"]):
            raise InvalidAction("there is no such function")
        return "noted"

    def step(self, action: str, calls: Sequence[ToolCall] = ()) -> Outcome:
        return Outcome("", done=not calls, answers=answers_to(calls, self.call))

    def verdict(self) -> Outcome:
        if "relevance" in self.category:
            right = bool(self.calls) != self.category.endswith("irrelevance")
            return Outcome("", float(right), done=True, info={"success": right})
        found = ast_check(self.question, self.calls, self.category)
        text = "" if found["valid"] else "; ".join(map(str, found["error"]))
        return Outcome(text, float(found["valid"]), done=True, info={"success": bool(found["valid"])})


def ast_check(question: Question, calls: Sequence[dict[str, Any]], category: str) -> dict[str, Any]:
    """The leaderboard's own comparison: `valid`, and the `error` in words."""
    table = "bfcl_eval.constants.model_config"
    if table not in sys.modules:
        # The checker asks this table whether the model writes dots as underscores. To import it takes the
        # libraries of all providers that are listed there.
        sys.modules[table] = ModuleType(table)
        sys.modules[table].__dict__["MODEL_CONFIG_MAPPING"] = {}
    sys.modules[table].MODEL_CONFIG_MAPPING.setdefault(NAME, SimpleNamespace(underscore_to_dot=False))
    from bfcl_eval.constants.enums import Language
    from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker

    truth, functions = question["ground_truth"], question["function"]
    found: dict[str, Any] = ast_checker(functions, list(calls), truth, Language.PYTHON, category, NAME)
    return found
