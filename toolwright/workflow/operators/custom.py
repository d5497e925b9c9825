"""A prompt of the workflow before whatever comes in: the operator that most workflows are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import OPERATORS, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step


@OPERATORS.register("Custom")
class Custom(Operator):
    """Answers `prompt + input` in free text."""

    name = "Custom"
    ports = {"input": Port(source="both")}
    fields = {"response": "text"}
    prompted = True

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        return {"response": await step.ask(step.instructed(inputs["input"]))}
