"""Several texts as one, where a list has a place for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import JOIN, OPERATORS, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step


@OPERATORS.register(JOIN)
class Join(Operator):
    """Words around what a node made, as one element of what an ensemble compares. Costs nothing."""

    name = JOIN
    ports = {"pieces": Port("text")}
    fields = {"text": "text"}
    solves = False

    def calls(self, settings: Mapping[str, int]) -> int:
        return 0

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        return {"text": inputs["pieces"]}
