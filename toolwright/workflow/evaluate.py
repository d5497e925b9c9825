"""What a workflow is worth on tasks: each of them run, scored and charged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolwright.trajectory import Segment, Task, Trajectory
from toolwright.workflow.interpreter import Blame, Trace, WorkflowInterpreter
from toolwright.workflow.program import Workflow

if TYPE_CHECKING:
    from toolwright.rewards import Scorer


@dataclass(frozen=True)
class WorkflowOutcome:
    """How one workflow fared on one task. It is charged for what it used, whatever came of it."""

    task_id: str
    score: float  # 0 where it failed
    cost: float = 0.0  # US dollars; a model without a price adds nothing, and a search refuses it before
    calls: int = 0  # of the model
    failure: str = ""
    blame: Blame = ""

    @property
    def counts(self) -> bool:
        """True if the outcome says something about the workflow."""
        return self.blame != "infrastructure"


class TaskEvaluator:
    """Runs workflows with an interpreter and scores what they answer. The same workflow, task and seed give
    the same outcome, whatever else is asked."""

    def __init__(
        self,
        interpreter: WorkflowInterpreter,
        scorer: Scorer,
        *,
        offers: Set[str] | None = None,
        parallel: int = 16,
    ) -> None:
        self.interpreter, self.scorer, self.offers, self.parallel = interpreter, scorer, offers, parallel

    async def evaluate(self, workflow: Workflow, tasks: Sequence[Task]) -> list[WorkflowOutcome]:
        """One outcome a task, in order. A workflow that cannot run gets failures, not an exception."""
        traces = await self.traces(workflow, tasks)
        judged = {
            place: _as_attempt(task, trace.answer)
            for place, (task, trace) in enumerate(zip(tasks, traces, strict=True))
            if trace.answer is not None
        }
        if judged:
            await self.scorer.score(list(judged.values()))
        return [_outcome(trace, judged.get(place)) for place, trace in enumerate(traces)]

    async def traces(self, workflow: Workflow, tasks: Sequence[Task]) -> list[Trace]:
        """Every task run, and none scored yet."""
        wrong = workflow.problems(self.interpreter.limits, self.offers)
        if wrong:
            return [Trace(task.id, failure=f"refused: {wrong[0]}", blame="workflow") for task in tasks]
        if not self.interpreter.side_by_side:
            return [await self.interpreter.run(workflow, task) for task in tasks]
        places = asyncio.Semaphore(self.parallel)

        async def one(task: Task) -> Trace:
            async with places:
                return await self.interpreter.run(workflow, task)

        running = [asyncio.ensure_future(one(task)) for task in tasks]
        try:
            return await asyncio.gather(*running)
        finally:  # a spent budget is raised as it is, and nobody goes on spending
            for attempt in running:
                attempt.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def _as_attempt(task: Task, answer: str) -> Trajectory:
    """An attempt that says nothing but the answer, which is all a scorer looks at."""
    return Trajectory(task, group=task.id, segments=[Segment("policy", [], text=answer)])


def _outcome(trace: Trace, judged: Trajectory | None) -> WorkflowOutcome:
    score, failure, blame = 0.0, trace.failure, trace.blame
    if judged is not None and judged.failure is not None:
        failure, blame = f"it could not be scored: {judged.failure.message}", "infrastructure"
    elif judged is not None:
        score = judged.reward or 0.0
    return WorkflowOutcome(trace.task_id, score, trace.cost, len(trace.calls), failure, blame)
