"""Operators without a model call: choose between two texts, look for words, join texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import (
    CHOOSE,
    CONTAINS,
    JOIN,
    OPERATORS,
    Inputs,
    NodeSetting,
    Operator,
    Port,
    Settings,
)

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step


@OPERATORS.register(CHOOSE)
class Choose(Operator):
    """`then` if `on` holds, `otherwise` if not. The interpreter computes only the branch that is taken."""

    name = CHOOSE
    ports = {"on": Port("flag", "none"), "then": Port("text"), "otherwise": Port("text", required=False)}
    fields = {"value": "text"}
    solves = False

    def calls(self, settings: Settings) -> int:
        return 0

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        return {"value": inputs["then"] if inputs["on"] else inputs["otherwise"]}


@OPERATORS.register(CONTAINS)
class Contains(Operator):
    """`words in text`; with `lower`, `words in text.lower()`. Costs nothing."""

    name = CONTAINS
    ports = {"text": Port("text"), "words": Port("text", "none")}
    fields = {"found": "flag"}
    settings = {"lower": NodeSetting(default=0, least=0, most=1)}
    solves = False

    def calls(self, settings: Settings) -> int:
        return 0

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        text = inputs["text"].lower() if self.setting(settings, "lower") else inputs["text"]
        return {"found": inputs["words"] in text}


@OPERATORS.register(JOIN)
class Join(Operator):
    """Words around what a node made, as one element of what an ensemble compares. Costs nothing."""

    name = JOIN
    ports = {"pieces": Port("text")}
    fields = {"text": "text"}
    solves = False

    def calls(self, settings: Settings) -> int:
        return 0

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        return {"text": inputs["pieces"]}
