"""Thinks first, then answers, in two parts that can be read apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Operator, Port
from toolwright.workflow.replies import field

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
Work on the following step by step. Put your reasoning between <thought> and </thought>. Then put the final
answer between <answer> and </answer>: the answer alone, as short as it can be, without a sentence around it.

{input}
"""


@OPERATORS.register("AnswerGenerate")
class AnswerGenerate(Operator):
    name = "AnswerGenerate"
    ports = {"input": Port(source="both")}
    fields = {"answer": "text", "thought": "text"}

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        reply = await step.ask(ASK.format(input=inputs["input"]))
        answer = field(reply, "answer")
        # Without the tags all of it is the answer: the scorer finds it, or does not.
        return {
            "answer": reply.strip() if answer is None else answer,
            "thought": field(reply, "thought") or "",
        }
