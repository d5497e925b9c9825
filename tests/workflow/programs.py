"""Workflows that several tests look at, and what runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from toolwright.config.schema import Reward
from toolwright.rewards import Scorer
from toolwright.trajectory import Task
from toolwright.workflow.apply import applied
from toolwright.workflow.edits import parse
from toolwright.workflow.evaluate import TaskEvaluator, WorkflowOutcome
from toolwright.workflow.graph import PROBLEM, Node, Ref, WorkflowLimits, refs_of, swapped
from toolwright.workflow.interpreter import WorkflowInterpreter
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.simulate import PROMPTS, SimulatedChat, SimulatedRunner, World

OPERATORS = ("Custom", "AnswerGenerate", "ScEnsemble", "Programmer", "Review", "Revise", "Format")


def built(*edits: str) -> Workflow:
    """From the single call, edit by edit."""
    workflow = single_call()
    for edit in edits:
        workflow = applied(workflow, parse(edit), PROMPTS)
    return workflow


def operators_of(workflow: Workflow) -> set[str]:
    return {node.operator for node in workflow.live}


def ensemble(generate: str = "solve", choose: str = "best", count: int = 3) -> Workflow:
    return Workflow(
        (
            Node(generate, "Custom", {"input": (PROBLEM,)}, "SOLVE", count),
            Node(choose, "ScEnsemble", {"problem": (PROBLEM,), "solutions": (Ref(generate, "response"),)}),
        ),
        (Ref(choose, "response"),),
        {"SOLVE": "Think hard.\n"},
    )


DIVERSE = (
    "add ScEnsemble after solve x 2",
    "add Custom into sc_ensemble with STEPS_PROMPT",
    "add AnswerGenerate into sc_ensemble",
    "add Format after sc_ensemble",
)


def simulated(
    seed: int, *, latency_s: float = 0.0, limits: WorkflowLimits | None = None
) -> tuple[World, TaskEvaluator]:
    world = World(seed)
    interpreter = WorkflowInterpreter(
        SimulatedChat(world, latency_s=latency_s), runner=SimulatedRunner(), limits=limits
    )
    return world, TaskEvaluator(interpreter, Scorer(Reward(), default="numeric"))


def evaluated(evaluator: TaskEvaluator, workflow: Workflow, tasks: Sequence[Task]) -> list[WorkflowOutcome]:
    """One outcome a task, in order, all of them made side by side."""

    async def go() -> list[WorkflowOutcome]:
        return await asyncio.gather(*(evaluator.evaluate(workflow, task) for task in tasks))

    return asyncio.run(go())


def renamed(workflow: Workflow, names: dict[str, str]) -> Workflow:
    """The same workflow, some of its nodes called otherwise."""

    def new(ref: Ref) -> Ref:
        return Ref(names.get(ref.node, ref.node), ref.field)

    swap = {ref: (new(ref),) for node in workflow.nodes for ref in node.refs}
    swap |= {ref: (new(ref),) for ref in refs_of(workflow.output)}
    nodes = tuple(
        replace(node.reading(swap), name=names.get(node.name, node.name)) for node in workflow.nodes
    )
    return Workflow(nodes, swapped(workflow.output, swap), workflow.prompts)


def mean(scores: Iterable[float]) -> float:
    values = list(scores)
    return sum(values) / len(values)


# Indices into what is legal at each step: a random walk through workflows.
walks = st.lists(st.integers(0, 10_000), max_size=5)
