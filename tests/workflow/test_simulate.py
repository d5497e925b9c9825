"""The simulated models: drawn from names alone, alike however they are asked, and worth searching."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.workflow.programs import DIVERSE, built, ensemble, evaluated, mean, renamed, simulated
from toolwright.failures import UserError
from toolwright.workflow.apply import applied
from toolwright.workflow.edits import parse
from toolwright.workflow.evaluate import TaskEvaluator, WorkflowOutcome
from toolwright.workflow.interpreter import CodeSandbox, Trace, WorkflowInterpreter
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.simulate import SimulatedChat, SimulatedRunner, World

FLOWS = {
    "single": single_call(),
    "ensemble": built("add ScEnsemble after solve x 3"),
    "diverse": built(*DIVERSE),
    "program": built("add Programmer after solve"),
    "revise": built("add Revise after solve"),
}


def outcomes(workflow: Workflow, seed: int, count: int, **how: float) -> list[WorkflowOutcome]:
    world, evaluator = simulated(seed, **how)  # type: ignore[arg-type]
    return evaluated(evaluator, workflow, world.tasks(count))


def same(one: list[WorkflowOutcome], other: list[WorkflowOutcome]) -> bool:
    def told(all: list[WorkflowOutcome]) -> list[tuple[object, ...]]:
        return [(o.task_id, o.score, round(o.cost, 12), o.calls, o.failure) for o in all]

    return told(one) == told(other)


@pytest.mark.parametrize("name", FLOWS)
def test_neither_order_nor_company_changes_an_outcome(name: str) -> None:
    flow = FLOWS[name]
    alone = outcomes(flow, 3, 12)
    assert same(alone, outcomes(flow, 3, 12, latency_s=0.001))  # side by side, ends in any order
    world, evaluator = simulated(3)

    async def backwards() -> list[WorkflowOutcome]:
        found = [await evaluator.evaluate(flow, task) for task in reversed(world.tasks(12))]
        return found[::-1]

    assert same(alone, asyncio.run(backwards()))
    other = renamed(flow, {node.name: f"n{place}" for place, node in enumerate(flow.nodes)})
    assert same(alone, outcomes(Workflow(other.nodes[::-1], other.output, other.prompts), 3, 12))


def test_a_step_draws_the_same_in_every_workflow_that_takes_it() -> None:
    world = World(5)
    traces = {}
    for name in ("single", "ensemble", "program"):
        interpreter = WorkflowInterpreter(SimulatedChat(world), runner=SimulatedRunner())
        traces[name] = asyncio.run(interpreter.run(FLOWS[name], world.tasks(1)[0]))
    first = traces["single"].calls[0]
    assert traces["program"].calls[0].reply == first.reply
    assert first.reply in [call.reply for call in traces["ensemble"].calls]
    assert len({call.sample for call in traces["ensemble"].calls if call.node == "solve"}) == 3


def test_there_is_something_to_find() -> None:
    gains = []
    for seed in range(6):
        scores = {name: mean(o.score for o in outcomes(flow, seed, 100)) for name, flow in FLOWS.items()}
        assert 0.1 < scores["single"] < 0.9
        gains.append(max(scores.values()) - scores["single"])
    assert mean(gains) > 0.1


def test_worlds_differ_and_splits_share_no_task() -> None:
    assert vars(World(1)) != vars(World(2))
    assert vars(World(1)) == vars(World(1))
    world = World(1)
    validation, test = (
        {task.id for task in world.tasks(50, split=split)} for split in ("validation", "test")
    )
    assert not validation & test
    with pytest.raises(UserError, match="validation and test"):
        world.tasks(1, split="train")


def test_errors_of_one_task_go_together() -> None:
    """Given that one sample is wrong, another is wrong more often than not knowing that."""
    world, evaluator = simulated(2)
    flow, tasks = ensemble(count=2), world.tasks(300)
    truth = {task.id: task.ground_truth for task in tasks}

    async def ran() -> list[Trace]:
        return [await evaluator.interpreter.run(flow, task) for task in tasks]

    traces = asyncio.run(ran())
    pairs = [
        [f"is {truth[trace.task_id]}" in call.reply for call in trace.calls if call.node == "solve"]
        for trace in traces
    ]
    wrong = mean(not right for pair in pairs for right in pair)
    both = mean(not any(pair) for pair in pairs)
    assert both > wrong * wrong + 0.05


TESTED = applied(single_call("CustomCodeGenerate"), parse("add Test after solve"))


@pytest.mark.parametrize(("world", "flow"), [(World(4), FLOWS["program"]), (World(4, code=True), TESTED)])
def test_the_simulated_sandbox_says_what_the_real_one_does(world: World, flow: Workflow) -> None:

    async def with_runner(runner: SimulatedRunner | CodeSandbox) -> list[WorkflowOutcome]:
        _, template = simulated(4)
        evaluator = TaskEvaluator(WorkflowInterpreter(SimulatedChat(world), runner=runner), template.scorer)
        try:
            return [await evaluator.evaluate(flow, task) for task in world.tasks(6)]
        finally:
            await runner.close()

    simulation, real = (asyncio.run(with_runner(runner)) for runner in (SimulatedRunner(), CodeSandbox()))
    # The real one's tracebacks are longer, and tokens cost.
    assert [(o.score, o.calls) for o in simulation] == [(o.score, o.calls) for o in real]
    assert any(o.calls > 2 for o in real)


def test_tests_find_most_of_what_is_wrong_with_code() -> None:
    found = []
    for seed in range(5):
        world = World(seed, code=True)
        _, template = simulated(seed)
        evaluator = TaskEvaluator(
            WorkflowInterpreter(SimulatedChat(world), runner=SimulatedRunner()), template.scorer
        )
        first, tested = (
            evaluated(evaluator, flow, world.tasks(80))
            for flow in (single_call("CustomCodeGenerate"), TESTED)
        )
        found.append(mean(o.score for o in tested) - mean(o.score for o in first))
    assert min(found) > 0
    assert mean(found) > 0.08


def test_a_model_of_another_world_is_not_asked() -> None:
    _, evaluator = simulated(1)
    with pytest.raises(UserError, match="world 1 was asked"):
        evaluated(evaluator, single_call(), World(2).tasks(1))


def test_many_evaluations_take_little_time() -> None:
    started = time.process_time()
    outcomes(FLOWS["ensemble"], 7, 400)
    assert time.process_time() - started < 2.0  # a fifth of a second on a quiet machine
