"""The Berkeley Function Calling Leaderboard: which calls answer a question, judged by its own checkers."""

from __future__ import annotations

import random
import string
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from toolwright.tasks import TASKS, SplitSizes, TaskSet
from toolwright.tasks.bfcl import MULTI_TURN, Question, checked, questions, schemas
from toolwright.tasks.bfcl_conversation import FunctionCallConversation
from toolwright.tasks.environment import (
    ENVIRONMENTS,
    Environment,
    InvalidAction,
    Observation,
    Outcome,
    ToolCall,
    answers_to,
)
from toolwright.trajectory import Task

DEFAULT = "simple,multiple,parallel,parallel_multiple,irrelevance,multi_turn_base"
NAME = "toolwright"  # under which the checker knows the policy


@ENVIRONMENTS.register("bfcl")
def world(category: str, id: str) -> Environment:
    """The environment of a question: of one turn, or a conversation."""
    return (FunctionCallConversation if category in MULTI_TURN else FunctionCallQuestion)(category, id)


class FunctionCallQuestion:
    """A question of one turn: its calls are noted, not run, and compared with those that are possible."""

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


@TASKS.register("bfcl")
def bfcl(
    *,
    sizes: SplitSizes,
    categories: list[str] | str = DEFAULT,
) -> TaskSet:
    """All questions of the `categories` are held out, but for `train_size` of them."""
    tasks = [_task(category, one) for category in checked(categories) for one in questions(category).values()]
    random.Random(f"bfcl {sizes.seed}").shuffle(tasks)
    train, held_out = tasks[: sizes.train or 0], tasks[sizes.train or 0 :][: sizes.held_out]
    names = checked(categories)
    text = "".join(f"{one['question']}{schemas(one)}" for name in names for one in questions(name).values())
    return TaskSet(
        train, held_out, scorer="environment", alphabet="".join(sorted({*string.printable, *text}))
    )


def _task(category: str, question: Question) -> Task:
    environment: dict[str, Any] = {"name": "bfcl", "category": category, "id": question["id"]}
    if category not in MULTI_TURN:
        environment["turns"] = 1
    return Task(
        id=question["id"],
        prompt=question["question"][0],
        ground_truth=question.get("ground_truth", []),
        data_source=f"bfcl/{category}",
        extra_info={"environment": environment},
    )
