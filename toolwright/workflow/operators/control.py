"""Operators without a model call: choose between two texts, look for words, join texts, cut one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from toolwright.workflow.operators import (
    CHOOSE,
    CONTAINS,
    JOIN,
    OPERATORS,
    PART,
    Inputs,
    NodeSetting,
    Operator,
    Port,
    Settings,
)

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step


class Free(Operator):
    """Costs nothing, and makes no solution of its own."""

    solves = False

    def calls(self, settings: Settings) -> int:
        return 0


@OPERATORS.register(CHOOSE)
class Choose(Free):
    """`then` if `on` holds, `otherwise` if not. The interpreter itself computes the branch that is taken."""

    name = CHOOSE
    ports = {"on": Port("flag", "none"), "then": Port(required=False), "otherwise": Port(required=False)}
    fields = {"value": "text"}


@OPERATORS.register(CONTAINS)
class Contains(Free):
    """`words in text`; with `lower`, `words in text.lower()`; with `whole`, whether the text is these words,
    blanks around it aside."""

    name = CONTAINS
    ports = {"text": Port("text"), "words": Port("text", "none")}
    fields = {"found": "flag"}
    settings = {
        "lower": NodeSetting(default=0, least=0, most=1),
        "whole": NodeSetting(default=0, least=0, most=1),
    }

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        text = inputs["text"].lower() if self.setting(settings, "lower") else inputs["text"]
        if self.setting(settings, "whole"):
            return {"found": inputs["words"].strip() == text.strip()}
        return {"found": inputs["words"] in text}


@OPERATORS.register(JOIN)
class Join(Free):
    """Words around what a node made, as one element of what an ensemble compares."""

    name = JOIN
    ports = {"pieces": Port("text")}
    fields = {"text": "text"}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        return {"text": inputs["pieces"]}


@OPERATORS.register(PART)
class Part(Free):
    """`text.split(separator)[place]`; it fails if the text has no such part."""

    name = PART
    ports = {"text": Port("text"), "separator": Port("text", "none", required=False)}
    fields = {"part": "text"}
    settings = {"place": NodeSetting(default=0, least=-16, most=16)}

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        return {"part": inputs["text"].split(inputs["separator"] or None)[self.setting(settings, "place")]}
