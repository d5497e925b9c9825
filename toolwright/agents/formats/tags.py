"""Tags: `<tool>code</tool>`, answered inline by `<result>…</result>`. Search-R1 does this with other
names."""

from __future__ import annotations

import re

from toolwright.agents.formats import FORMATS, CallFormat, Offered, Schemas, described
from toolwright.agents.formats.arguments import from_body, to_body
from toolwright.failures import UserError
from toolwright.tools.call import Malformed, ToolRequest

NAME = re.compile(r"[A-Za-z_][\w.-]*")


@FORMATS.register("tags")
class Tags(CallFormat):
    """`<call>` calls the first offered tool. Any other tool is called by a tag of its own name."""

    inline = True

    def __init__(self, call: str = "tool", result: str = "result", around: str = "") -> None:
        for name in (call, result):
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise UserError(
                    f"{name!r} is not a valid tag name; write one such as rollout.call_params.call=tool"
                )
        self.call, self.answer, self.around = call, result, str(around)

    def opens(self, offered: Offered) -> tuple[str, ...]:
        return tuple(f"<{name}>" for name in dict.fromkeys([self.call, *offered]))

    def stop(self, offered: Offered) -> tuple[str, ...]:
        return tuple(f"</{name}>" for name in dict.fromkeys([self.call, *offered]))

    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        if not offered:
            return []
        names = sorted({self.call, *offered}, key=len, reverse=True)
        mark = re.compile(f"<(/?)({'|'.join(map(re.escape, names))})>")
        found: list[ToolRequest | Malformed] = []
        place = 0
        while opening := mark.search(said, place):
            name = opening[2]
            if opening[1]:
                found.append(Malformed(f"</{name}> has no <{name}> before it"))
                place = opening.end()
                continue
            end = said.find(f"</{name}>", opening.end())
            if end < 0:
                found.append(Malformed(f"<{name}> is not closed by </{name}>"))
                break
            tool = name if name in offered else next(iter(offered))
            found.append(from_body(tool, said[opening.end() : end], offered[tool]))
            place = end + len(f"</{name}>")
        return found

    def write(self, call: ToolRequest, offered: Offered) -> str:
        name = self.call if call.name == next(iter(offered), None) else call.name
        return f"<{name}>{to_body(call, offered.get(call.name, {}))}</{name}>"

    def instructions(self, schemas: Schemas) -> str:
        others = [schema["function"]["name"] for schema in schemas[1:]]
        also = f", or any other by a tag of its name, such as <{others[0]}>…</{others[0]}>" if others else ""
        first = schemas[0]["function"]["name"]
        return (
            f"You can use these tools:\n{described(schemas)}\n"
            f"Call {first} by writing its argument between <{self.call}> and </{self.call}>{also}. "
            f"The answer follows between <{self.answer}> and </{self.answer}>."
        )

    def result(self, text: str) -> str:
        return f"{self.around}<{self.answer}>{text}</{self.answer}>{self.around}"
