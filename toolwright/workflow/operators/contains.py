"""Whether a text says certain words: the condition that AFlow's workflows put to a model's verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import CONTAINS, OPERATORS, NodeSetting, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step


@OPERATORS.register(CONTAINS)
class Contains(Operator):
    """`words in text`; with `lower`, `words in text.lower()`. Costs nothing."""

    name = CONTAINS
    ports = {"text": Port("text"), "words": Port("text", "none")}
    fields = {"found": "flag"}
    settings = {"lower": NodeSetting(default=0, least=0, most=1)}
    solves = False

    def calls(self, settings: Mapping[str, int]) -> int:
        return 0

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        text = inputs["text"].lower() if self.setting(settings, "lower") else inputs["text"]
        return {"found": inputs["words"] in text}
