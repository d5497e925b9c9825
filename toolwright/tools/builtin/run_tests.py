"""The examples of a problem about code, tried on a solution in a sandbox."""

from __future__ import annotations

from dataclasses import replace

from toolwright.tasks.public_tests import trial
from toolwright.tools import TOOLS
from toolwright.tools.call import ToolResult
from toolwright.tools.sandboxed import SandboxTool, sendable
from toolwright.trajectory import Task

_LONGEST = 1 << 18  # characters, as for any code


@TOOLS.register("run_tests", needs=["sandbox"])
class RunTests(SandboxTool):
    """Try your code on the examples of the task before you answer. You see which of them fail, and why.

    Mend the code and try it again. Then answer with the whole code in one Python block.

    Args:
        code: all of your code, with the function that the task asks for
    """

    async def __call__(self, code: str, *, task: Task) -> ToolResult:
        """Only `extra_info.public_tests` are tried: the tests that give the reward are not known here."""
        tests, entry = task.extra_info.get("public_tests"), task.extra_info.get("entry_point")
        code = _unfenced(sendable(code, "code", _LONGEST))
        if not tests or not entry:
            ran = await self._run(code, "")
            note = "the code runs; this task has no examples to try it on"
            return ran if ran.trouble else replace(ran, text=note)
        declaration = str(task.extra_info.get("declaration") or "")
        return await self._run(trial(code, tests, str(entry), declaration=declaration), "")


def _unfenced(code: str) -> str:
    """Remove the fence that a model may put around its argument."""
    lines = code.strip().splitlines()
    if len(lines) < 2 or not lines[0].startswith("```"):
        return code
    return "\n".join(lines[1:-1] if lines[-1].strip() == "```" else lines[1:])
