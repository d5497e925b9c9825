"""What a workflow is worth on tasks: each of them run, scored and charged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from toolwright.trajectory import Task
from toolwright.workflow.program import Workflow

# Who is to blame where there is a failure: the workflow itself, which is then worth 0; or the machines, the
# provider, the scorer, and then the outcome says nothing about the workflow.
Blame = Literal["", "workflow", "infrastructure"]


@dataclass(frozen=True)
class Outcome:
    """How one workflow fared on one task. It is charged for what it used, whatever came of it."""

    task_id: str
    score: float  # 0 where it failed
    cost: float = 0.0  # US dollars
    calls: int = 0  # of the model
    failure: str = ""
    blame: Blame = ""
    tokens: int = 0
    seconds: float = 0.0

    @property
    def counts(self) -> bool:
        """Whether it says something about the workflow."""
        return self.blame != "infrastructure"


class Evaluator(Protocol):
    """Real or simulated. The same workflow, task and seed give the same outcome, whoever else is evaluated."""

    async def evaluate(self, workflow: Workflow, tasks: Sequence[Task]) -> list[Outcome]:
        """One outcome a task, in order. A workflow that cannot run gets failures, not an exception."""
        ...

    async def close(self) -> None: ...
