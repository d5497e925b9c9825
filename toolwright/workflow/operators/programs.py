"""Operators that run code in the sandbox: compute the answer with a program, or test a solution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from toolwright.rewards.programs import code_of
from toolwright.tasks.public_tests import completed
from toolwright.workflow.operators import OPERATORS, Inputs, NodeSetting, Operator, Port, Settings

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step


PROGRAM_PROMPT = """\
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
    """Writes a program and runs it: `output` is what it returned; where no attempt ran, it is empty."""

    name = "Programmer"
    ports = {"problem": Port(source="problem"), "analysis": Port(required=False)}
    fields = {"output": "text", "code": "text"}
    settings = {"attempts": NodeSetting(default=3, most=5)}
    needs = frozenset({"sandbox"})
    may_be_empty = True

    def calls(self, settings: Settings) -> int:
        return self.setting(settings, "attempts")

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        ask = PROGRAM_PROMPT.format(problem=inputs["problem"])
        if inputs["analysis"].strip():
            ask += ANALYSIS.format(analysis=inputs["analysis"])
        code = trouble = ""
        for _ in range(self.setting(settings, "attempts")):
            reply = await step.ask(ask + trouble)
            code = code_of(reply, defining="solve")
            result = await step.run_code(code + _RUN)
            if result.ok:
                return {"output": result.stdout.strip(), "code": code}
            trouble = FAILED.format(code=code, error=result.trouble)
        return {"output": "", "code": code}


TEST_PROMPT = """\
A solution to the problem below fails a test. Think about why, then write the whole function `{entry_point}`
again in one Python block.

Problem:
{problem}

Solution:
```python
{solution}
```

What happened:
{trouble}
"""


@OPERATORS.register("Test")
class Test(Operator):
    """Runs public tests and mends the solution: `result`: whether all pass; `solution`: the last one."""

    name = "Test"
    ports = {
        "problem": Port(source="problem"),
        "solution": Port(),
        "entry_point": Port(source="entry_point"),
    }
    fields = {"solution": "text", "result": "flag"}
    settings = {"rounds": NodeSetting(default=3, most=5)}
    needs = frozenset({"sandbox", "public_tests"})

    def calls(self, settings: Settings) -> int:
        return self.setting(settings, "rounds")

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        entry, solution = inputs["entry_point"], inputs["solution"]
        tests: Sequence[str] = step.task.extra_info.get("public_tests") or ()
        if not tests:
            step.note("the task has no public tests: nothing was tested")
            return {"solution": solution, "result": True}
        declaration = str(step.task.extra_info.get("declaration", ""))
        for turn in range(self.setting(settings, "rounds") + 1):
            program = trial(code_of(solution, defining=entry), tests, entry, declaration=declaration)
            result = await step.run_code(program)
            if result.ok:
                return {"solution": solution, "result": True}
            if turn == self.setting(settings, "rounds"):
                break
            asked = {"problem": inputs["problem"], "solution": solution, "entry_point": entry}
            reply = await step.ask(TEST_PROMPT.format(**asked, trouble=result.trouble))
            solution = code_of(reply, defining=entry)
        return {"solution": solution, "result": False}


def trial(code: str, tests: Sequence[str], entry_point: str, *, declaration: str = "") -> str:
    """The solution, then the tests; AFlow's call what they test `candidate`."""
    source = completed(code, declaration, entry_point)
    body = "\n".join(f"    {line}" for test in tests for line in test.strip().splitlines())
    return f"{source}\n\ndef _check(candidate):\n{body}\n\n_check({entry_point})\n"
