"""Where a search stands with one workflow: what the policy is shown, and what its steps are grouped by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toolwright.workflow.diagram import as_text
from toolwright.workflow.program import Workflow

SHOWN_TRIED = 8  # edits that were tried from here, the telling ones


@dataclass(frozen=True)
class Tried:
    """An edit of this state, and what it gained."""

    edit: str
    gain: float
    failure: str = ""


@dataclass(frozen=True)
class WorkflowState:
    """A workflow in a search. What happened to it is told; who it is depends on its meaning alone."""

    setting: str  # data set and executor
    kind: str  # of problems: math, code, question, …
    workflow: Workflow
    score: float | None = None
    start: float | None = None  # the score that the search began with
    tried: Sequence[Tried] = ()
    left: float = 1.0  # part of the budget

    @property
    def anchor(self) -> str:
        """Equal exactly where states are: steps from here are compared with each other."""
        return f"{self.setting}/{self.workflow.meaning}"

    @property
    def operators(self) -> list[str]:
        return self.workflow.operators

    @property
    def text(self) -> str:
        """For the policy: what kind of problems, how well the start does on them, and the structure. Short,
        because it is read for every edit; the words of prompts are their names."""
        structure = as_text(self.workflow, literals=False).replace("\n", "; ")
        level = "?" if self.start is None else str(min(9, int(10 * self.start)))
        return f"{self.kind} {level}: {structure}"

    @property
    def report(self) -> str:
        """For a model that reads: prompts, scores, what was tried from here and the budget as well."""
        lines = [f"problems: {self.kind}", as_text(self.workflow)]
        lines += [f"{name} = {text!r}" for name, text in sorted(self.workflow.prompts.items())]
        if self.score is not None:
            above = "" if self.start is None else f" ({100 * (self.score - self.start):+.1f} on the start)"
            lines.append(f"score: {100 * self.score:.1f}{above}")
        ranked = sorted(self.tried, key=lambda one: (bool(one.failure), -abs(one.gain)))[:SHOWN_TRIED]
        lines += [f"tried: {one.edit} -> {one.failure or f'{100 * one.gain:+.1f}'}" for one in ranked]
        lines.append(f"budget left: {100 * self.left:.0f} %")
        return "\n".join(lines)
