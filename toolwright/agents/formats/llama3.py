"""Llama 3's JSON: a turn consists of one or several `{"name": …, "parameters": {…}}` and nothing else."""

from __future__ import annotations

from toolwright.agents.formats import FORMATS, CallFormat, Offered, Schemas
from toolwright.agents.formats.arguments import Unreadable, call_of, from_body, read_json, to_json
from toolwright.tools.call import Malformed, ToolRequest

TAG = "<|python_tag|>"  # most tokenizers leave it out of the text: it is a special token


@FORMATS.register("llama3")
class Llama3(CallFormat):
    def read(self, said: str, offered: Offered) -> list[ToolRequest | Malformed]:
        before, tag, after = said.partition(TAG)
        text = (after if tag else before).strip()
        if not text.startswith(("{", "[")) and not tag:
            return []  # an answer in words
        try:
            values = _values(text)
        except Unreadable as reason:
            if tag and "python" in offered and not text.startswith(("{", "[")):
                return [from_body("python", text, offered["python"])]
            meant = tag or text.startswith(('{"name"', '[{"name"'))
            return [Malformed(f"the call cannot be read: {reason}")] if meant else []
        # An answer may be JSON as well; what has no name was not meant as a call.
        if not tag and not any(isinstance(value, dict) and "name" in value for value in values):
            return []
        return [call_of(value) for value in values]

    def write(self, call: ToolRequest, offered: Offered) -> str:
        return to_json({"name": call.name, "parameters": call.arguments})

    def instructions(self, schemas: Schemas) -> str:
        listed = "\n\n".join(to_json(schema) for schema in schemas)
        return (
            f"You may call these functions, given as JSON schemas:\n\n{listed}\n\n"
            'To call one, answer with nothing but {"name": …, "parameters": {…}}; '
            "several are separated by semicolons."
        )


def _values(text: str) -> list[object]:
    """Yield JSON values that follow each other, with commas, semicolons or nothing between them. Lists are
    flattened."""
    values: list[object] = []
    place = 0
    while place < len(text):
        value, place = read_json(text, place)
        values += value if isinstance(value, list) else [value]
        while place < len(text) and text[place] in "; ,\n\t\r":
            place += 1
    return values
