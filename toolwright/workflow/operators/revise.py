"""Writes a solution again with what a review found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Operator, Port
from toolwright.workflow.replies import field

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
Revise the solution to the problem below. A reviewer remarked on it; use what is right about the remarks.

Problem:
{problem}

Solution:
{solution}

Remarks:
{feedback}

Put the whole revised solution between <solution> and </solution>.
"""


@OPERATORS.register("Revise")
class Revise(Operator):
    name = "Revise"
    ports = {"problem": Port(source="problem"), "solution": Port(), "feedback": Port(source="feedback")}
    fields = {"solution": "text"}

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        reply = await step.ask(ASK.format(**{key: inputs[key] for key in self.ports}))
        solution = field(reply, "solution")
        return {"solution": reply.strip() if solution is None else solution}
