"""A function by the name that the task asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.rewards.programs import code_of
from toolwright.workflow.operators import OPERATORS, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = "\n\nWrite the whole function `{entry_point}` in one Python block, with the imports it needs."


@OPERATORS.register("CustomCodeGenerate")
class CustomCodeGenerate(Operator):
    """Answers `prompt + problem` with code; `response` is the code alone."""

    name = "CustomCodeGenerate"
    ports = {"problem": Port(source="both"), "entry_point": Port(source="entry_point")}
    fields = {"response": "text"}
    prompted = True
    needs = frozenset({"entry_point"})

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        ask = step.instructed(inputs["problem"]) + ASK.format(entry_point=inputs["entry_point"])
        return {"response": code_of(await step.ask(ask))}
