"""Operators that work on a solution: review it, revise it, or cut it down to the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Inputs, Operator, Port, Settings, content, verdict

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step


REVIEW_PROMPT = """\
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
    """Judges a solution: whether it is right, and what is wrong with it."""

    name = "Review"
    ports = {"problem": Port(source="problem"), "solution": Port()}
    fields = {"feedback": "text", "review_result": "flag"}
    solves = False

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        reply = await step.ask(REVIEW_PROMPT.format(problem=inputs["problem"], solution=inputs["solution"]))
        return {"feedback": content(reply, "feedback"), "review_result": verdict(reply, "review_result")}


REVISE_PROMPT = """\
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
    """Rewrites a solution by the remarks of a review."""

    name = "Revise"
    ports = {"problem": Port(source="problem"), "solution": Port(), "feedback": Port(source="feedback")}
    fields = {"solution": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        reply = await step.ask(REVISE_PROMPT.format(**{key: inputs[key] for key in self.ports}))
        return {"solution": content(reply, "solution")}


FORMAT_PROMPT = """\
Here is a problem and a solution to it. Take the final answer out of the solution, change nothing about it,
and put it between <solution> and </solution>: the answer alone, in the form that the problem asks for.

Problem:
{problem}

Solution:
{solution}
"""


@OPERATORS.register("Format")
class Format(Operator):
    """Cuts a solution down to its final answer, in the form that the problem asks for."""

    name = "Format"
    ports = {"problem": Port(source="problem"), "solution": Port()}
    fields = {"solution": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        reply = await step.ask(FORMAT_PROMPT.format(problem=inputs["problem"], solution=inputs["solution"]))
        return {"solution": content(reply, "solution")}
