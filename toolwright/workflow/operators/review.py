"""Looks for mistakes in a solution and says what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Operator, Port
from toolwright.workflow.replies import field, verdict

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
Examine the solution to the problem below as a strict reader would: is each step right, and is the question
that was asked answered?

Problem:
{problem}

Solution:
{solution}

Put true or false between <review_result> and </review_result>: whether the solution is right. If it is not,
put what is wrong with it between <feedback> and </feedback>.
"""


@OPERATORS.register("Review")
class Review(Operator):
    name = "Review"
    ports = {"problem": Port(source="problem"), "solution": Port()}
    fields = {"feedback": "text", "review_result": "flag"}
    solves = False

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        reply = await step.ask(ASK.format(problem=inputs["problem"], solution=inputs["solution"]))
        feedback = field(reply, "feedback")
        return {
            "feedback": reply.strip() if feedback is None else feedback,
            "review_result": verdict(reply, "review_result"),
        }
