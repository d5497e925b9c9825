"""Cuts a solution down to the answer that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Operator, Port
from toolwright.workflow.replies import field

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
Here is a problem and a solution to it. Take the final answer out of the solution, change nothing about it,
and put it between <solution> and </solution>: the answer alone, in the form that the problem asks for.

Problem:
{problem}

Solution:
{solution}
"""


@OPERATORS.register("Format")
class Format(Operator):
    name = "Format"
    ports = {"problem": Port(source="problem"), "solution": Port()}
    fields = {"solution": "text"}

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        reply = await step.ask(ASK.format(problem=inputs["problem"], solution=inputs["solution"]))
        solution = field(reply, "solution")
        return {"solution": reply.strip() if solution is None else solution}
