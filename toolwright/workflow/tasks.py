"""Workflows to be edited: simulated models and data sets, and how far each has been edited already."""

from __future__ import annotations

import asyncio
import random
from typing import Annotated, Any

from pydantic import Field

from toolwright.tasks import TASKS, TaskSet
from toolwright.trajectory import Task
from toolwright.workflow.environment import WorkflowWorld, legal, started

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
            known = list(legal(WorkflowWorld(world).site, started(edits)))
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
        edit = rng.choice([*legal(world.site, world.workflow), "accept"])
        messages += [{"role": "user", "content": seen}, {"role": "assistant", "content": edit}]
        outcome = await world.step(edit)
        if outcome.done:
            return messages
        seen = outcome.text
