"""Recording: workflows drawn at random, each run on every task, until the time is up."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toolwright.failures import UserError
from toolwright.workflow.apply import applied, candidates
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.executors import ChatExecutor, build_executor
from toolwright.workflow.launch import editor_of, portfolio_of
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.runners import LocalRunner
from toolwright.workflow.table import SPLITS, RecordedTable
from toolwright.workflow.tree import Run, schedule

SAMPLES = (2, 3, 5)  # that an ensemble may compare
AT_ONCE = 8  # workflows that are run side by side
TRIES = 200  # edits drawn for one more workflow before the space is called exhausted


def drawn_space(editor: Editor, first: Sequence[Workflow], *, count: int, seed: int) -> list[Workflow]:
    """The given workflows and others: any edit of any of them, again and again. So the space knows nothing of
    the strategies that are compared on it."""
    rng = random.Random(f"space {seed}")
    found = {workflow.fingerprint: workflow for workflow in first}
    tries = 0
    while len(found) < count and (tries := tries + 1) < TRIES * count:
        parent = rng.choice(list(found.values()))
        prompts = {**editor.prompts, **parent.prompts}
        edit = rng.choice(list(candidates(parent, editor.operators, prompts=prompts, samples=SAMPLES)))
        try:
            made = applied(parent, edit, editor.prompts)
        except UserError:
            continue
        if not made.problems(editor.limits, editor.offers):
            found.setdefault(made.fingerprint, made)
    return list(found.values())


async def record_tables(
    config: WorkflowConfig, file: Path, workflows: int, repeats: int, *, until: float
) -> list[RecordedTable]:
    """A table of each data set, one after another. Runs are kept in a folder beside the file, so that they
    are not made again if this is started again."""
    folder = file.with_suffix(".runs")
    folder.mkdir(parents=True, exist_ok=True)
    return [await _recorded(config, name, folder, workflows, repeats, until) for name in config.data]


async def _recorded(
    config: WorkflowConfig, name: str, folder: Path, workflows: int, repeats: int, until: float
) -> RecordedTable:
    """Run workflows on the tasks of both splits until the clock says `until`."""
    tasks, executor = _of_both_splits(config, name, cache=str(folder / "calls.db"))
    editor = editor_of(config, executor)
    first = [single_call(), *(one.workflow for one in portfolio_of(config, editor))]
    space = drawn_space(editor, first, count=workflows, seed=config.run.seed)
    runner = LocalRunner(executor, ExperiencePool(folder / "pool.db"))
    made: list[dict[Run, Payment]] = [{} for _ in space]
    places = asyncio.Semaphore(AT_ONCE)

    async def run(number: int, runs: Sequence[Run]) -> None:
        async with places:
            made[number].update(await runner.run(space[number], runs))

    every = [task for split in SPLITS for task in tasks[split]]
    try:
        async with asyncio.timeout(until - time.monotonic()):
            for repeat in range(repeats):
                runs = [run for run in schedule(every, repeat + 1) if run[1] == repeat]
                await asyncio.gather(*(run(number, runs) for number in range(len(space))))
    except TimeoutError:
        pass  # what is whole by now is the table
    finally:
        await runner.close()
    return RecordedTable.of(
        list(zip(space, made, strict=True)),
        tasks=tasks,
        name=name,
        setting=executor.setting,
        kind=executor.kind,
        operators=list(editor.operators),
        prompts=dict(editor.prompts),
    )


def _of_both_splits(
    config: WorkflowConfig, name: str, *, cache: str
) -> tuple[dict[str, list[str]], ChatExecutor]:
    """The ids of the tasks by split, and an executor of them all."""
    parts = {split: build_executor(config, name, held_out=split == "test", cache=cache) for split in SPLITS}
    ids = {split: [task.id for task in part.tasks()] for split, part in parts.items()}
    one = parts["validation"]
    if not isinstance(one, ChatExecutor):
        raise UserError("a table is recorded of a model that answers: say executor.name=chat")
    return ids, replace(one, chosen=tuple(t for part in parts.values() for t in part.tasks()), split="both")
