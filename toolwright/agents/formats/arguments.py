"""Arguments as a policy writes them: JSON of any shape, or text that stands for a typed value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from toolwright.models.tokenizer import clean
from toolwright.tools.call import Malformed, ToolRequest

DEEPEST = 32  # no tool takes more levels, and what is deeper breaks whoever walks it


class Unreadable(Exception):
    """The text cannot be read as a call. The policy reads the message."""


def read_json(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins here, and where it ends. Raises only Unreadable."""
    while start < len(text) and text[start].isspace():
        start += 1
    try:
        value, end = _DECODER.raw_decode(text, start)
        return _checked(value, DEEPEST), end
    except RecursionError:
        raise Unreadable("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise Unreadable(f"it is not valid JSON: {error.msg} (character {error.pos - start})") from None
    except ValueError as error:  # a number of thousands of digits
        raise Unreadable(f"it is not valid JSON: {error}") from None


def call_of(value: Any) -> ToolRequest | Malformed:
    """Read `{"name": …, "arguments": {…}}`. `parameters` is accepted instead of `arguments`."""
    if not isinstance(value, dict):
        return Malformed("a call is a JSON object with a name and arguments")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return Malformed('a call needs a "name", which is text')
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        try:
            arguments, _ = read_json(arguments)
        except Unreadable as reason:
            return Malformed(f"the arguments cannot be read: {reason}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        return Malformed('"arguments" must be a JSON object')
    identity = value.get("id")
    return ToolRequest(name, arguments, id=identity if isinstance(identity, str) else "")


def typed(text: str, schema: Mapping[str, Any]) -> Any:
    """Convert text to the type in a parameter's schema. A string parameter takes the text itself."""
    if schema.get("type", "string") == "string":
        return text
    try:
        value, end = read_json(text)
    except Unreadable:
        return text  # the tool will say what it wants
    return text if text[end:].strip() else value


def from_body(name: str, body: str, schema: Mapping[str, Any]) -> ToolRequest | Malformed:
    """Build a call from a single text, which becomes the tool's first parameter."""
    properties = schema.get("properties") or {}
    required = schema.get("required") or []
    if not properties:
        return Malformed(f"{name} takes no arguments") if body.strip() else ToolRequest(name)
    if len(required) > 1:
        try:
            value, end = read_json(body)
        except Unreadable as reason:
            wanted = ", ".join(required)
            return Malformed(f"{name} takes a JSON object with {wanted}, but this cannot be read: {reason}")
        if not isinstance(value, dict) or body[end:].strip():
            return Malformed(f"{name} takes a JSON object with {', '.join(required)}")
        return ToolRequest(name, value)
    first = required[0] if required else next(iter(properties))
    return ToolRequest(name, {first: typed(body, properties.get(first) or {})})


def to_body(call: ToolRequest, schema: Mapping[str, Any]) -> str:
    """The inverse of `from_body`."""
    required = schema.get("required") or []
    if len(required) > 1 or len(call.arguments) > 1:
        return to_json(call.arguments)
    value = next(iter(call.arguments.values()), "")
    return value if isinstance(value, str) else to_json(value)


def to_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


# Not strict: models write line breaks into strings.
_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=_finite)


def _checked(value: Any, levels: int) -> Any:
    """Remove lone surrogates, which JSON can escape but UTF-8 cannot encode, and refuse deep nesting."""
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        raise Unreadable("it is nested too deeply")
    if isinstance(value, list):
        return [_checked(item, levels - 1) for item in value]
    return {clean(key): _checked(item, levels - 1) for key, item in value.items()}
