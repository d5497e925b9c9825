"""The typed workflow: a graph that can be checked, compared with others, and run.

A workflow is evaluated from its output backwards: a node runs when something needs what it makes, and the
branch that a `Choose` does not take never runs. There are no statements, no order but that of the data, and
no loop but `repeat`. So everything a workflow does is bounded before it starts.
"""

from __future__ import annotations

from collections.abc import Set
from functools import cached_property

from toolwright.failures import UserError
from toolwright.workflow import canonical
from toolwright.workflow.check import problems
from toolwright.workflow.graph import ENTRY_POINT, PROBLEM, Graph, Node, Pieces, WorkflowLimits
from toolwright.workflow.operators import operator


class Workflow(Graph):
    """A program. Two with the same `fingerprint` do the same, whatever their nodes and prompts are called."""

    @cached_property
    def simplified(self) -> Workflow:
        """An equivalent workflow without anything that has no effect."""
        found = canonical.simplify(self)
        found.__dict__["simplified"] = found
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for equivalent workflows. Names, order and dead nodes do not count."""
        return canonical.fingerprint(self.simplified)

    @cached_property
    def identities(self) -> dict[str, tuple[str, int]]:
        """For each live node a hash of what it computes, and the number of its first sample."""
        return canonical.identities(self)

    def problems(self, limits: WorkflowLimits | None = None, offers: Set[str] | None = None) -> list[str]:
        """List everything that is wrong with it; an empty list for one that may run. Makes no call.

        `offers` names what the tasks and the machine have of the operators' `needs`; None: all of it.
        """
        return problems(self, limits or WorkflowLimits(), offers)

    def checked(self) -> Workflow:
        """Return it, or raise a UserError with its first problem."""
        if found := self.problems():
            raise UserError(f"the workflow cannot run: {found[0]}")
        return self


def single_call(operator_name: str = "Custom", prompt: str = "") -> Workflow:
    """The smallest workflow, which every search starts from: one call, no prompt or the one given."""
    inputs: dict[str, Pieces] = {}
    for port, declared in operator(operator_name).ports.items():
        if declared.source == "entry_point":
            inputs[port] = (ENTRY_POINT,)
        elif declared.required:
            inputs[port] = (PROBLEM,)
    prompts = {"SOLVE_PROMPT": prompt} if prompt else {}
    node = Node("solve", operator_name, inputs, prompt="SOLVE_PROMPT" if prompt else "")
    return Workflow((node,), (node.main,), prompts)
