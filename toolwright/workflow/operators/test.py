"""Runs the public tests of a task in the sandbox, and lets the model mend what fails them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from toolwright.rewards.programs import code_of, completed
from toolwright.workflow.operators import OPERATORS, NodeSetting, Operator, Port

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

ASK = """\
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
    """`result`: whether all public tests pass; `solution`: the last version of it."""

    name = "Test"
    ports = {
        "problem": Port(source="problem"),
        "solution": Port(),
        "entry_point": Port(source="entry_point"),
    }
    fields = {"solution": "text", "result": "flag"}
    settings = {"rounds": NodeSetting(default=3, most=5)}
    needs = frozenset({"sandbox", "public_tests"})

    def calls(self, settings: Mapping[str, int]) -> int:
        return self.setting(settings, "rounds")

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        entry, solution = inputs["entry_point"], inputs["solution"]
        tests: Sequence[str] = step.task.extra_info.get("public_tests") or ()
        if not tests:
            step.note("the task has no public tests: nothing was tested")
            return {"solution": solution, "result": True}
        declaration = str(step.task.extra_info.get("declaration", ""))
        for turn in range(self.setting(settings, "rounds") + 1):
            program = trial(code_of(solution), tests, entry, declaration=declaration)
            result = await step.run_code(program)
            if result.ok:
                return {"solution": solution, "result": True}
            if turn == self.setting(settings, "rounds"):
                break
            asked = {"problem": inputs["problem"], "solution": solution, "entry_point": entry}
            solution = code_of(await step.ask(ASK.format(**asked, trouble=result.trouble)))
        return {"solution": solution, "result": False}


def trial(code: str, tests: Sequence[str], entry_point: str, *, declaration: str = "") -> str:
    """The solution, then the tests; AFlow's call what they test `candidate`."""
    source = completed(code, declaration, entry_point)
    body = "\n".join(f"    {line}" for test in tests for line in test.strip().splitlines())
    return f"{source}\n\ndef _check(candidate):\n{body}\n\n_check({entry_point})\n"
