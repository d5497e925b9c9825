"""Writes a program that computes the answer, runs it in the sandbox, and mends it when it fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from toolwright.rewards.programs import code_of
from toolwright.workflow.operators import OPERATORS, NodeSetting, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
Write a Python function `solve()` without parameters that computes and returns the answer to the problem
below. Answer with one Python block: the imports, the function, nothing that calls it.

Problem:
{problem}
"""
ANALYSIS = "\nWhat was found out so far:\n{analysis}\n"
FAILED = "\nThis was tried:\n```python\n{code}\n```\nIt failed:\n{error}\nMend it.\n"
_RUN = "\n\n_answer = solve()\nprint(_answer)\n"


@OPERATORS.register("Programmer")
class Programmer(Operator):
    """`output` is what the program returned; where no attempt ran, it is empty."""

    name = "Programmer"
    ports = {"problem": Port(source="problem"), "analysis": Port(required=False)}
    fields = {"output": "text", "code": "text"}
    settings = {"attempts": NodeSetting(default=3, most=5)}
    needs = frozenset({"sandbox"})
    may_be_empty = True

    def calls(self, settings: Mapping[str, int]) -> int:
        return self.setting(settings, "attempts")

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        ask = ASK.format(problem=inputs["problem"])
        if inputs["analysis"].strip():
            ask += ANALYSIS.format(analysis=inputs["analysis"])
        code = trouble = ""
        for _ in range(self.setting(settings, "attempts")):
            reply = await step.ask(ask + trouble)
            code = code_of(reply)
            result = await step.run_code(code + _RUN)
            if result.ok:
                return {"output": result.stdout.strip(), "code": code}
            trouble = FAILED.format(code=code, error=result.trouble)
        return {"output": "", "code": code}
