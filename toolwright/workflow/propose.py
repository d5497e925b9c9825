"""Proposers that need no model: every legal edit, one as likely as the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from toolwright.workflow.apply import legal
from toolwright.workflow.edits import Accept
from toolwright.workflow.pool import Experience
from toolwright.workflow.program import Workflow, WorkflowLimits
from toolwright.workflow.state import WorkflowState
from toolwright.workflow.tree import Proposal


@dataclass(frozen=True)
class Editor:
    """What may be done to workflows of one data set."""

    operators: Sequence[str]
    prompts: Mapping[str, str] = field(default_factory=dict)  # that may be given to operators, by name
    limits: WorkflowLimits = field(default_factory=WorkflowLimits)
    offers: Set[str] | None = None  # what the data set offers to operators that need it; None: all

    def edits(self, workflow: Workflow) -> dict[str, Workflow]:
        """Every legal edit but `accept`, as its words, with what it makes."""
        found = legal(workflow, self.operators, prompts=self.prompts, limits=self.limits, offers=self.offers)
        return {str(edit): made for edit, made in found.items() if not isinstance(edit, Accept)}


class Uniform:
    def __init__(self, editor: Editor) -> None:
        self.editor = editor

    async def propose(self, state: WorkflowState, again: int) -> Sequence[Proposal]:
        if again:
            return []
        return [Proposal(edit, made) for edit, made in self.editor.edits(state.workflow).items()]

    def learn(self, experiences: Sequence[Experience]) -> Mapping[str, float]:
        return {}
