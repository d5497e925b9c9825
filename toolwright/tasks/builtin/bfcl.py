"""The Berkeley Function Calling Leaderboard: which calls answer a question, judged by its own checkers."""

from __future__ import annotations

from typing import Any

from toolwright.tasks import ENVIRONMENTS, TASKS, Environment, SplitSizes, TaskSet
from toolwright.tasks.bfcl import MULTI_TURN, Question, checked, questions, schemas
from toolwright.tasks.bfcl_conversation import FunctionCallConversation
from toolwright.tasks.bfcl_question import FunctionCallQuestion
from toolwright.tasks.worlds import benchmark
from toolwright.trajectory import Task

DEFAULT = "simple,multiple,parallel,parallel_multiple,irrelevance,multi_turn_base"


@ENVIRONMENTS.register("bfcl")
def world(category: str, id: str) -> Environment:
    """The environment of a question: of one turn, or a conversation."""
    return (FunctionCallConversation if category in MULTI_TURN else FunctionCallQuestion)(category, id)


@TASKS.register("bfcl")
def bfcl(*, sizes: SplitSizes, categories: list[str] | str = DEFAULT) -> TaskSet:
    """All questions of the `categories` are held out, but for `train_size` of them."""
    found = [(name, question) for name in checked(categories) for question in questions(name).values()]
    text = "".join(f"{question['question']}{schemas(question)}" for _, question in found)
    return benchmark("bfcl", [_task(*one) for one in found], sizes=sizes, text=text)


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
