"""Recording: workflows drawn at random, each run on every task, until the time is up."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toolwright.failures import InfrastructureFailure, UserError
from toolwright.workflow.apply import applied, candidates
from toolwright.workflow.config import WorkflowConfig
from toolwright.workflow.datasets import load
from toolwright.workflow.executors import Executor, build_executor
from toolwright.workflow.launch import editor_of, portfolio_of
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import Workflow, single_call
from toolwright.workflow.proposers import Editor
from toolwright.workflow.runners import LocalRunner
from toolwright.workflow.table import SPLITS, RecordedTable, save_tables
from toolwright.workflow.tree import Run, schedule

log = logging.getLogger(__name__)

AT_ONCE = 4  # workflows of a data set that are run side by side; when the time is up, these are lost
WRITE_S = 15.0  # between two writings of the file
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
        edit = rng.choice(list(candidates(parent, editor.operators, prompts=prompts)))
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
    """Record a table of each data set, side by side, until the clock says `until`.

    The file is written again and again on the way. Runs are kept in a folder beside it, so that they are not
    made again if this is started again. A data set that fails is reported and does not end the others.
    """
    folder = file.with_suffix(".runs")
    folder.mkdir(parents=True, exist_ok=True)
    recordings: list[Recording] = []
    errors: list[UserError] = []
    try:
        for name in config.data:
            try:
                recordings.append(Recording(config, name, folder, workflows, repeats))
            except UserError as error:
                errors.append(error)
        writing = asyncio.create_task(_written_often(recordings, file))
        ended = await asyncio.gather(*(one.go(until) for one in recordings), return_exceptions=True)
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
    finally:
        for one in recordings:
            await one.runner.close()
    for one, end in zip(recordings, ended, strict=True):
        if isinstance(end, BaseException):
            log.error("%s ended early: %s", one.name, end)
    tables = [table for one in recordings if (table := one.table()) is not None]
    if not tables:
        reason = (
            str(errors[0]) if errors else "no workflow ran on every task; allow more time, or use fewer tasks"
        )
        raise UserError(reason)
    for refused in errors:
        log.error("%s", refused)
    save_tables(tables, file)
    return tables


async def _written_often(recordings: Sequence[Recording], file: Path) -> None:
    """So that a process that is killed leaves what it has."""
    while True:
        await asyncio.sleep(WRITE_S)
        tables = [table for one in recordings if (table := one.table()) is not None]
        if tables:
            await asyncio.to_thread(save_tables, tables, file)


class Recording:
    """The recording of one data set: workflows that run on the tasks of both splits."""

    def __init__(self, config: WorkflowConfig, name: str, folder: Path, workflows: int, repeats: int) -> None:
        self.name, self.repeats = name, repeats
        self.tasks, self.executor = _of_both_splits(config, name)
        self.executor = replace(self.executor, cache=str(folder / "calls.db"))
        self.editor = editor_of(config, self.executor)
        first = [single_call(), *(one.workflow for one in portfolio_of(config, self.editor))]
        self.space = drawn_space(self.editor, first, count=workflows, seed=config.run.seed)
        self.pool = ExperiencePool(folder / "pool.db")
        self.runner = LocalRunner(self.executor, self.pool)
        self.made: list[dict[Run, Payment]] = [{} for _ in self.space]
        self._places = asyncio.Semaphore(AT_ONCE)

    async def go(self, until: float) -> None:
        every = [task for split in SPLITS for task in self.tasks[split]]
        try:
            async with asyncio.timeout(until - time.monotonic()):
                for repeat in range(self.repeats):
                    runs = [run for run in schedule(every, repeat + 1) if run[1] == repeat]
                    await asyncio.gather(*(self._run(number, runs) for number in range(len(self.space))))
        except TimeoutError:
            pass  # what is whole by now is the table

    async def _run(self, number: int, runs: Sequence[Run]) -> None:
        """Run a workflow on all tasks. Of one that lost a run to infrastructure, what was paid for stays."""
        workflow = self.space[number]
        async with self._places:
            try:
                made = await self.runner.run(workflow, runs)
            except InfrastructureFailure as error:
                log.warning("%s: %s", self.name, error)
                made = self.pool.paid(self.executor.setting, workflow.fingerprint)
        self.made[number].update(made)

    def table(self) -> RecordedTable | None:
        """The workflows that ran on every task by now; None: there is none yet."""
        return RecordedTable.of(
            list(zip(self.space, self.made, strict=True)),
            tasks=self.tasks,
            name=self.name,
            setting=self.executor.setting,
            kind=self.executor.kind,
            operators=list(self.editor.operators),
            prompts=dict(self.editor.prompts),
        )


def _of_both_splits(config: WorkflowConfig, name: str) -> tuple[dict[str, list[str]], Executor]:
    """The ids of the tasks by split, and an executor of them all. Smaller data sets are taken whole."""
    if config.executor.name != "chat":
        raise UserError("recording needs a model that answers; set executor.name=chat")
    search = config.search
    whole = load(name, folder=Path(search.folder), seed=config.run.seed)
    sizes = {
        "tasks": min(search.tasks, len(whole.validation)),
        "held_out": min(search.held_out, len(whole.test)),
    }
    config = config.model_copy(update={"search": search.model_copy(update=sizes)})
    parts = {split: build_executor(config, name, split) for split in SPLITS}
    ids: dict[str, list[str]] = {split: [task.id for task in part.tasks] for split, part in parts.items()}
    one = parts["validation"]
    every = [task for part in parts.values() for task in part.tasks]
    setting = one.setting.replace(f"{name}/validation", f"{name}/both", 1)
    return ids, replace(one, tasks=every, setting=setting)
