"""Fenced blocks: code in ```python … ```, and its output in ```output … ``` below."""

from __future__ import annotations

import re

from toolwright.agents.formats import FORMATS, CallFormat, Offered, Schemas, described
from toolwright.agents.formats.arguments import from_body, to_body
from toolwright.tools.call import Malformed, ToolRequest

FENCE = re.compile(r"^[ \t]*```[ \t]*([\w.+-]*)[ \t]*\r?$", re.MULTILINE)
PYTHON = ("python", "py", "python3")


@FORMATS.register("fenced")
class Fenced(CallFormat):
    """Runs a block that names Python or a tool. If no tool is named Python, the first tool runs Python
    blocks."""

    inline = True

    def opens(self, offered: Offered) -> tuple[str, ...]:
        return ("```",)

    def stop(self, offered: Offered) -> tuple[str, ...]:
        return ("\n```\n",)

    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        found: list[ToolRequest | Malformed] = []
        opened: re.Match[str] | None = None
        for fence in FENCE.finditer(said):
            if opened is None:
                opened = fence
            elif not fence[1]:
                tool = _tool(opened[1], offered)
                if tool:
                    body = said[opened.end() + 1 : fence.start()].removesuffix("\n")
                    found.append(from_body(tool, body, offered[tool]))
                opened = None
        if opened is not None and _tool(opened[1], offered):
            found.append(Malformed(f"the block ```{opened[1]} is not closed by ```"))
        return found

    def write(self, call: ToolRequest, offered: Offered) -> str:
        name = "python" if call.name == _tool("python", offered) else call.name
        return f"```{name}\n{to_body(call, offered.get(call.name, {}))}\n```\n"

    def instructions(self, schemas: Schemas) -> str:
        return (
            f"You can use these tools:\n{described(schemas)}\n"
            "Write code to be run as a block:\n```python\n…\n```\nIts output follows as a block:\n"
            "```output\n…\n```"
        )

    def result(self, text: str) -> str:
        return f"```output\n{text}\n```\n"


def _tool(language: str, offered: Offered) -> str:
    """The tool that a block of this language calls; "" if it calls none."""
    if language in offered:
        return language
    return next((n for n in ("python", *offered) if n in offered), "") if language in PYTHON else ""
