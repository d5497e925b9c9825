"""What a workflow is worth on tasks: each of them run, scored and charged."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from toolwright.trajectory import Segment, Task, Trajectory
from toolwright.workflow.interpreter import Blame, WorkflowInterpreter
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
        self, interpreter: WorkflowInterpreter, scorer: Scorer, *, offers: Set[str] | None = None
    ) -> None:
        """`offers`: what the tasks and the machine have of the operators' `needs`; None: all of it."""
        self.interpreter, self.scorer, self.offers = interpreter, scorer, offers

    async def evaluate(self, workflow: Workflow, task: Task) -> WorkflowOutcome:
        """A workflow that cannot run gets a failure, not an exception."""
        if wrong := workflow.problems(self.interpreter.limits, self.offers):
            return WorkflowOutcome(task.id, 0.0, failure=f"refused: {wrong[0]}", blame="workflow")
        trace = await self.interpreter.run(workflow, task)
        score, failure, blame = 0.0, trace.failure, trace.blame
        if trace.answer is not None:
            # An attempt that says nothing but the answer, which is all that a scorer looks at.
            answer = Segment("policy", [], text=trace.answer)
            attempt = Trajectory(task, group=task.id, segments=[answer])
            await self.scorer.score([attempt])
            if attempt.failure is None:
                score = attempt.reward or 0.0
            else:
                failure, blame = f"it could not be scored: {attempt.failure.message}", "infrastructure"
        return WorkflowOutcome(task.id, score, trace.cost, len(trace.calls), failure, blame)
