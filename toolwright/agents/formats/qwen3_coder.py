"""Qwen3-Coder's XML: `<tool_call><function=name><parameter=x>…</parameter></function></tool_call>`."""

from __future__ import annotations

import re

from toolwright.agents.formats import FORMATS, CallFormat, Offered, Schemas
from toolwright.agents.formats.arguments import to_json, typed
from toolwright.tools.call import Malformed, ToolRequest

FUNCTION = re.compile(r"<function=([^<>\n]{0,200})>")
PARAMETER = re.compile(r"<parameter=([^<>\n]{0,200})>")
# Where a parameter's text may end; the tag that should end it is often left out.
AFTER = re.compile(r"</parameter>|<parameter=|</function>")


@FORMATS.register("qwen3_coder")
class Qwen3Coder(CallFormat):
    def opens(self, offered: Offered) -> tuple[str, ...]:
        return ("<tool_call>", "<function=")

    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        found: list[ToolRequest | Malformed] = []
        place = 0
        while opening := FUNCTION.search(said, place):
            found += _left_over(said[place : opening.start()])
            end = said.find("</function>", opening.end())
            if end < 0:
                return [*found, Malformed(f"<function={opening[1]}> is not closed by </function>")]
            # A parameter may hold the closing tag, as text: the last one before the next call counts.
            following = FUNCTION.search(said, opening.end())
            limit = following.start() if following else len(said)
            end = max(end, said.rfind("</function>", opening.end(), limit))
            found.append(_call(opening[1].strip(), said[opening.end() : end], offered))
            place = end + len("</function>")
        return [*found, *_left_over(said[place:], last=True)]

    def write(self, call: ToolRequest, offered: Offered) -> str:
        lines = ["<tool_call>", f"<function={call.name}>"]
        for name, value in call.arguments.items():
            lines += [f"<parameter={name}>", value if isinstance(value, str) else to_json(value)]
            lines += ["</parameter>"]
        return "\n".join([*lines, "</function>", "</tool_call>"])

    def instructions(self, schemas: Schemas) -> str:
        listed = "\n".join(to_json(schema) for schema in schemas)
        return (
            f"You may call these tools, given as JSON schemas:\n<tools>\n{listed}\n</tools>\n"
            "For each call, write:\n<tool_call>\n<function=name>\n<parameter=parameter_name>\nvalue\n"
            "</parameter>\n</function>\n</tool_call>"
        )


def _left_over(rest: str, *, last: bool = False) -> list[Malformed]:
    """A call that was begun, and holds something else than a function."""
    _, opened, inside = rest.rpartition("<tool_call>")
    wrong = opened and (last or inside.strip())
    return [Malformed("<tool_call> must hold <function=name>…</function>")] if wrong else []


def _call(name: str, body: str, offered: Offered) -> ToolRequest | Malformed:
    if not name:
        return Malformed("<function=…> needs the name of a tool")
    properties = offered.get(name, {}).get("properties") or {}
    arguments = {}
    place = 0
    while opening := PARAMETER.search(body, place):
        key = opening[1].strip()
        after = AFTER.search(body, opening.end())
        end = after.start() if after else len(body)
        value = body[opening.end() : end].removeprefix("\n").removesuffix("\n")
        arguments[key] = typed(value, properties.get(key) or {})
        place = end
    if not arguments and body.strip():
        return Malformed(f"{name}: arguments are written <parameter=name>value</parameter>")
    return ToolRequest(name, arguments)
