"""Searches over simulated models, small enough for tests."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

from toolwright.workflow.config import Aflow, Guided
from toolwright.workflow.executors import SimulatedExecutor
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.program import single_call
from toolwright.workflow.proposers import Editor, UniformProposer
from toolwright.workflow.runners import LocalRunner
from toolwright.workflow.search_loop import Proposer, Runner, WorkflowSearch
from toolwright.workflow.selection import AflowSelection, GuidedSelection, Selection
from toolwright.workflow.tree import schedule

OPERATORS = ("Custom", "AnswerGenerate", "Programmer", "ScEnsemble", "Format")


def searched(
    pool: ExperiencePool | None,
    *,
    seed: int = 3,
    runs: int = 200,
    select: str = "guided",
    latency_s: float = 0.0,
    proposer: Proposer | None = None,
    runner: Runner | None = None,
    parallel: int = 16,
) -> WorkflowSearch:
    executor = SimulatedExecutor.of(seed, 12, latency_s=latency_s, parallel=parallel)
    tasks = [task.id for task in executor.tasks]
    random.Random(seed).shuffle(tasks)
    selection: Selection
    if select == "aflow":
        selection = AflowSelection(Aflow(repeats=1), schedule(tasks, 1))
    else:
        selection = GuidedSelection(Guided(first=6, repeats=2), tasks)

    async def go() -> WorkflowSearch:
        search = WorkflowSearch(
            name="test",
            setting=executor.setting,
            kind=executor.kind,
            start=single_call(),
            selection=selection,
            proposer=proposer or UniformProposer(Editor(OPERATORS)),
            runner=runner or LocalRunner(executor, pool),
            pool=pool,
            runs=runs,
            seed=seed,
        )
        return await search.go()

    return asyncio.run(go())


def told(found: WorkflowSearch) -> list[tuple[object, ...]]:
    """All that two equal searches agree on."""
    return [
        (c.number, c.parent, c.edit, c.fingerprint, sorted(c.runs), round(c.mean, 9), c.failure)
        for c in found.tree
    ]


if __name__ == "__main__":
    searched(ExperiencePool(Path(sys.argv[1])), latency_s=float(sys.argv[2]))
    print("done", flush=True)
