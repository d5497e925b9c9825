"""One of two texts, by a condition: the one control flow of a workflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import CHOOSE, OPERATORS, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step


@OPERATORS.register(CHOOSE)
class Choose(Operator):
    """`then` if `on` holds, `otherwise` if not. The interpreter computes only the branch that is taken."""

    name = CHOOSE
    ports = {"on": Port("flag", "none"), "then": Port("text"), "otherwise": Port("text", required=False)}
    fields = {"value": "text"}
    solves = False

    def calls(self, settings: Mapping[str, int]) -> int:
        return 0

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        return {"value": inputs["then"] if inputs["on"] else inputs["otherwise"]}
