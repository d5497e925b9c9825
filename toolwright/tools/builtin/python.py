"""Python in a sandbox: every call is a program of its own."""

from __future__ import annotations

from toolwright.tools import TOOLS
from toolwright.tools.call import ToolResult
from toolwright.tools.sandboxed import SandboxTool


@TOOLS.register("python", needs=["sandbox"])
class Python(SandboxTool):
    """Run a Python program and get what it prints. Nothing is kept from one call to the next.

    Args:
        code: the program; print what you want to see
        stdin: what the program reads with input()
    """

    speaks_plain = True

    async def __call__(self, code: str, stdin: str = "") -> ToolResult:
        return await self._run(code, stdin)
