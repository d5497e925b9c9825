"""Any registered tool as an operator: its parameters are the ports, what it answers the result."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.failures import UserError, nearest
from toolwright.tools import TOOLS
from toolwright.tools.call import ToolRequest
from toolwright.tools.signature import Signature
from toolwright.workflow.operators import Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step


class ToolOperator(Operator):
    """Makes no call of the model. What the tool says of a wrong argument is its result, as to a policy."""

    fields = {"result": "text"}

    def __init__(self, name: str, schema: Mapping[str, Any], *, needs: frozenset[str]) -> None:
        required = set(schema["required"])
        self._tool = name
        # Of the instance, not of the class: each tool has other ports.
        self.name = f"tool.{name}"  # type: ignore[misc]
        self.ports = {  # type: ignore[misc]
            key: Port(source="previous" if key in required else "none", required=key in required)
            for key in schema["properties"]
        }
        self.needs = needs  # type: ignore[misc]

    def calls(self, settings: Mapping[str, int]) -> int:
        return 0

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        arguments = {key: text for key, text in inputs.items() if text != ""}
        return {"result": await step.call_tool(ToolRequest(self._tool, arguments))}


def tool_operator(name: str) -> ToolOperator:
    if name not in TOOLS.names():
        raise UserError(f"unknown operator 'tool.{name}': no such tool; {nearest(name, TOOLS.names())}")
    entry = TOOLS.get(name)
    target: Any = entry.target
    if isinstance(target, type):
        if not hasattr(target, "__call__") or hasattr(target, "tools"):  # noqa: B004 - asked of the class
            raise UserError(f"operator 'tool.{name}': it is a server of several tools, not one")
        signature = Signature(name, types.MethodType(target.__call__, target), doc=target.__doc__)
    else:
        signature = Signature(name, target)
    return ToolOperator(name, signature.schema, needs=frozenset(entry.needs & {"sandbox"}))
