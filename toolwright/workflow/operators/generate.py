"""Operators that generate an answer: free text, reasoning and answer apart, or a function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwright.rewards.programs import code_of
from toolwright.workflow.operators import OPERATORS, Inputs, Operator, Port, Settings, content, field

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step


@OPERATORS.register("Custom")
class Custom(Operator):
    """Answers `prompt + input` in free text."""

    name = "Custom"
    ports = {"input": Port(source="both")}
    fields = {"response": "text"}
    prompted = True

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        return {"response": await step.ask(step.instructed(inputs["input"]))}


ANSWER_PROMPT = """\
Work on the following step by step. Put your reasoning between <thought> and </thought>. Then put the final
answer between <answer> and </answer>: the answer alone, as short as it can be, without a sentence around it.

{input}
"""


@OPERATORS.register("AnswerGenerate")
class AnswerGenerate(Operator):
    """Thinks step by step, and returns the final answer apart from the reasoning."""

    name = "AnswerGenerate"
    ports = {"input": Port(source="both")}
    fields = {"answer": "text", "thought": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        reply = await step.ask(ANSWER_PROMPT.format(input=inputs["input"]))
        # Without the tags all of it is the answer: the scorer finds it, or does not.
        return {"answer": content(reply, "answer"), "thought": field(reply, "thought") or ""}


CODE_PROMPT = "\n\nWrite the whole function `{entry_point}` in one Python block, with the imports it needs."


@OPERATORS.register("CustomCodeGenerate")
class CustomCodeGenerate(Operator):
    """Answers `prompt + problem` with code; `response` is the code alone."""

    name = "CustomCodeGenerate"
    ports = {"problem": Port(source="both"), "entry_point": Port(source="entry_point")}
    fields = {"response": "text"}
    prompted = True
    needs = frozenset({"entry_point"})

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        ask = step.instructed(inputs["problem"]) + CODE_PROMPT.format(entry_point=inputs["entry_point"])
        return {"response": code_of(await step.ask(ask), defining=inputs["entry_point"])}
