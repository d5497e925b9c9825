"""Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. Qwen 2.5 and 3 write it too."""

from __future__ import annotations

from toolwright.agents.formats import FORMATS, CallFormat, Offered, Schemas
from toolwright.agents.formats.arguments import Unreadable, call_of, read_json, to_json
from toolwright.tools.call import Malformed, ToolRequest

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@FORMATS.register("hermes")
class Hermes(CallFormat):
    def opens(self, offered: Offered) -> tuple[str, ...]:
        return (OPEN,)

    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        found: list[ToolRequest | Malformed] = []
        place = said.find(OPEN)
        while place >= 0:
            place += len(OPEN)
            try:
                # Read first and closed after: an argument may hold the closing tag itself.
                value, end = read_json(said, place)
                one = call_of(value)
            except Unreadable as reason:
                end, one = place, Malformed(f"the call cannot be read: {reason}")
            closed = said.find(CLOSE, end)
            if closed < 0:
                found.append(Malformed(f"{OPEN} is not closed by {CLOSE}"))
                break
            if not isinstance(one, Malformed) and said[end:closed].strip():
                one = Malformed(f"there is text between the call and {CLOSE}")
            found.append(one)
            place = said.find(OPEN, closed)
        return found

    def write(self, call: ToolRequest, offered: Offered) -> str:
        body = to_json({"name": call.name, "arguments": call.arguments})
        return f"{OPEN}\n{body}\n{CLOSE}"

    def instructions(self, schemas: Schemas) -> str:
        listed = "\n".join(to_json(schema) for schema in schemas)
        return (
            f"You may call these tools, given as JSON schemas:\n<tools>\n{listed}\n</tools>\n"
            f"For each call, write a JSON object with its name and arguments:\n"
            f'{OPEN}\n{{"name": …, "arguments": {{…}}}}\n{CLOSE}'
        )
