"""Editing workflows as an environment: the policy sees a state, answers with an edit, and earns the gain.

What a workflow scores is simulated, so that a policy learns to edit without paying anybody.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from toolwright.failures import UserError
from toolwright.tasks import ENVIRONMENTS, TASKS, InvalidAction, Observation, Outcome, TaskSet
from toolwright.trajectory import Task

if TYPE_CHECKING:
    from toolwright.workflow.evaluate import Evaluator
    from toolwright.workflow.executors import SimulatedExecutor
    from toolwright.workflow.program import Workflow
    from toolwright.workflow.proposers import WorkflowState


FAULT = -0.05  # what an edit that cannot be made costs, in points of score
MOST_KEPT = 20_000


@ENVIRONMENTS.register("workflow")
class WorkflowWorld:
    """`world`: which simulated model and data set; `edits`: those that lead from a single call to where it
    begins; `turns`: after so many it is over, as it is after `accept`; `tasks`: behind a score."""

    def __init__(self, world: int, edits: Sequence[str] = (), turns: int = 3, tasks: int = 32) -> None:
        from toolwright.workflow.executors import SimulatedExecutor

        self.executor = SimulatedExecutor(seed=world, count=tasks)
        self.left = turns
        self.workflow = started(edits)
        self.base = self.score = 0.0

    async def reset(self, task: Task) -> Observation:
        self.base = await expected(self.executor, started())
        self.score = await expected(self.executor, self.workflow)
        return Observation(self.state.text, self.state.anchor)

    async def step(self, action: str) -> Outcome:
        self.left -= 1
        over = self.left <= 0
        if action == "accept":
            return self._outcome(0.0, done=True)
        made = edited(self.executor, self.workflow, action)
        if made is None:
            if over:
                return self._outcome(FAULT, done=True)
            raise InvalidAction(self.state.text, reward=FAULT)
        self.workflow = made
        before, self.score = self.score, await expected(self.executor, self.workflow)
        return self._outcome(self.score - before, done=over)

    def close(self) -> None:
        pass

    @property
    def state(self) -> WorkflowState:
        from toolwright.workflow.proposers import WorkflowState

        return WorkflowState(self.executor.setting, self.executor.kind, self.workflow, self.score, self.base)

    def _outcome(self, reward: float, *, done: bool) -> Outcome:
        better = {"success": self.score > self.base}
        return Outcome(self.state.text, reward, done, self.state.anchor, better)


def started(edits: Sequence[str] = ()) -> Workflow:
    """A single call, edited."""
    from toolwright.workflow.apply import applied
    from toolwright.workflow.edits import parse
    from toolwright.workflow.program import single_call
    from toolwright.workflow.simulate import PROMPTS

    workflow = single_call()
    for text in edits:
        workflow = applied(workflow, parse(text), PROMPTS)
    return workflow


def edited(executor: SimulatedExecutor, workflow: Workflow, action: str) -> Workflow | None:
    """What the edit makes: another workflow that may run, or None."""
    from toolwright.workflow.apply import applied
    from toolwright.workflow.edits import parse

    try:
        made = applied(workflow, parse(action), executor.prompts)
    except UserError:
        return None
    return None if made.problems(executor.limits) or made.fingerprint == workflow.fingerprint else made


# Attempts come by the same workflows again and again.
_edits: dict[str, dict[str, Workflow]] = {}
_scores: dict[tuple[Any, str], float] = {}


def legal(executor: SimulatedExecutor, workflow: Workflow) -> dict[str, Workflow]:
    """What can be done, as words, and what it makes."""
    from toolwright.workflow.proposers import Editor

    key = json.dumps(workflow.to_json(), sort_keys=True)
    if key not in _edits:
        if len(_edits) > MOST_KEPT:
            _edits.clear()
        _edits[key] = Editor(executor.operators, executor.prompts, executor.limits).edits(workflow)
    return _edits[key]


async def expected(executor: SimulatedExecutor, workflow: Workflow) -> float:
    """Its mean score on the world's tasks."""
    key = executor, workflow.fingerprint
    if key not in _scores:
        if len(_scores) > MOST_KEPT:
            _scores.clear()
        evaluator, tasks = _opened(executor)
        made = await evaluator.evaluate(workflow, tasks)
        _scores[key] = fmean(outcome.score for outcome in made)
    return _scores[key]


@functools.lru_cache(maxsize=512)
def _opened(executor: SimulatedExecutor) -> tuple[Evaluator, Sequence[Task]]:
    return executor.open()(0), executor.tasks()


WORLDS = 256  # that are trained on, unless train_size says otherwise
HELD_OUT = 1_000_000  # worlds from here on are none of a run's training, whatever its seed


@TASKS.register("workflow")
def workflow(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    turns: Annotated[int, Field(ge=1, le=12)] = 3,
    depth: Annotated[int, Field(ge=0, le=6)] = 2,
    tasks: Annotated[int, Field(ge=1)] = 32,
) -> TaskSet:
    """An attempt edits `turns` times at most, and begins with a workflow up to `depth` edits from a single
    call; `tasks` stand behind a score."""

    def task(world: int) -> Task:
        rng = random.Random(f"workflow {world}")
        edits: list[str] = []
        for _ in range(rng.randint(0, depth)):
            known = list(legal(WorkflowWorld(world).executor, started(edits)))
            edits.append(rng.choice(known))
        settings = {"name": "workflow", "world": world, "edits": edits, "turns": turns, "tasks": tasks}
        return Task(
            id=f"workflow:{world}",
            prompt=[{"role": "system", "content": ""}],
            data_source="workflow",
            extra_info={"environment": settings},
        )

    first = 10_000 * (seed + 1)
    return TaskSet(
        train=[task(first + n) for n in range(train_size or WORLDS)],
        held_out=[task(HELD_OUT + n) for n in range(held_out_size)],
        scorer="environment",
        alphabet="",
        demonstrate=demonstrated,
    )


def demonstrated(task: Task, rng: random.Random) -> list[dict[str, Any]]:
    """Legal edits, one as likely as another: what is to be learned here is the language."""
    settings = dict(task.extra_info["environment"])
    settings.pop("name")
    return asyncio.run(_played(WorkflowWorld(**settings), task, rng))


async def _played(world: WorkflowWorld, task: Task, rng: random.Random) -> list[dict[str, Any]]:
    seen, messages = (await world.reset(task)).text, []
    while True:
        edit = rng.choice([*legal(world.executor, world.workflow), "accept"])
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": edit}]
        outcome = await world.step(edit)
        if outcome.done:
            return messages
        seen = outcome.text
