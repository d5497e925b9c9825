"""Near misses: calls in another format than the current one, or of a tool that is not offered.

The policy gets a helpful answer. With `rollout.call_params.near_misses=map`, a call with only one possible
meaning is carried out.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any, Literal, cast, get_args

from toolwright.agents.formats import CallFormat, Offered
from toolwright.agents.formats.arguments import Unreadable, call_of, from_body, read_json
from toolwright.agents.formats.fenced import FENCE, PYTHON
from toolwright.agents.formats.qwen3_coder import Qwen3Coder
from toolwright.failures import UserError, nearest
from toolwright.tools.call import Malformed, ToolRequest

NearMissMode = Literal["explain", "map", "ignore"]
Calls = list[ToolRequest | Malformed]

_OBJECT = re.compile(r'\{\s*"name"\s*:')
_MOST = 8  # candidates of one turn that are looked at: a policy may write thousands
NAME_SHOWN = 80  # characters of a name that the policy made up


def checked_mode(value: Any) -> NearMissMode:
    """Check `rollout.call_params.near_misses`: it must be one of the three modes."""
    for mode in get_args(NearMissMode):
        if value == mode:
            return cast(NearMissMode, mode)
    known = ", ".join(get_args(NearMissMode))
    raise UserError(f"rollout.call_params.near_misses={value!r}: expected one of {known}")


class NearMisses:
    """Reads a turn in its own format, and looks for calls in other formats if it finds none."""

    def __init__(self, call_format: CallFormat, mode: NearMissMode) -> None:
        self.format, self.mode = call_format, mode

    def read(self, said: str, offered: Offered) -> Calls:
        """Return every call of the turn. A call in another format becomes the call that it stands for, or a
        reason."""
        calls = self.format.read(said, offered)
        if self.mode == "ignore" or any(isinstance(one, ToolRequest) for one in calls):
            return calls
        others = _in_other_formats(said, offered, code=self.mode == "map")
        if self.mode == "map" and others:
            return list(others)
        if others and not calls:
            name = others[0].name[:NAME_SHOWN]
            wrong = f"this looks like a call of {name!r}, but it is not in the call format"
            return [Malformed(f"{wrong}. {self._example(offered, name)}")]
        return calls

    def meant(self, call: ToolRequest, offered: Offered) -> ToolRequest:
        """Return the call that is meant if only one tool and one argument fit, else the call unchanged."""
        if self.mode != "map" or (call.name not in offered and len(offered) != 1):
            return call
        name = call.name if call.name in offered else next(iter(offered))
        arguments = _renamed(call.arguments, offered[name])
        return call if arguments is None else ToolRequest(name, arguments, id=call.id)

    def unknown(self, name: str, offered: Offered) -> str:
        """Return the answer to a call of a tool that is not offered."""
        name = name[:NAME_SHOWN]
        known = f"the only tool is {next(iter(offered))!r}" if len(offered) == 1 else nearest(name, offered)
        known = known if known.endswith("?") else f"{known}."
        return f"there is no tool {name!r}; {known} {self._example(offered, name)}"

    def _example(self, offered: Offered, name: str) -> str:
        """Write an example call of the tool with the nearest name, or of the first tool."""
        name = next(iter(difflib.get_close_matches(name, offered, n=1) or offered))
        required = offered[name].get("required") or []
        example = ToolRequest(name, dict.fromkeys(required, "…"))
        return f"Write it like this:\n{self.format.write(example, offered)}"


def _in_other_formats(said: str, offered: Offered, *, code: bool) -> Sequence[ToolRequest]:
    """Calls as JSON with a name and arguments, in whatever tags or fences, and as `<function=…>`; with
    `code`, also a block of Python that ends the turn, where the one tool that is offered runs code."""
    found = [one for one in Qwen3Coder().read(said, offered) if isinstance(one, ToolRequest)]
    place = 0
    for _ in range(_MOST):
        opening = _OBJECT.search(said, place)
        if opening is None:
            break
        place = opening.end()
        try:
            value, place = read_json(said, opening.start())
        except Unreadable:
            continue
        one = call_of(value)
        if isinstance(one, ToolRequest) and ("arguments" in value or "parameters" in value):
            found.append(one)
    return found or (_block(said, offered) if code else [])


def _block(said: str, offered: Offered) -> list[ToolRequest]:
    fences = list(FENCE.finditer(said))
    if (
        len(offered) != 1
        or len(fences) < 2
        or fences[-2][1] not in PYTHON
        or said[fences[-1].end() :].strip()
    ):
        return []
    [(name, schema)] = offered.items()
    if schema.get("required") != ["code"]:
        return []
    one = from_body(name, said[fences[-2].end() + 1 : fences[-1].start()].removesuffix("\n"), schema)
    return [one] if isinstance(one, ToolRequest) else []


def _renamed(arguments: dict[str, Any], schema: Any) -> dict[str, Any] | None:
    """Rename the arguments to the tool's own names, if the mapping is unambiguous."""
    properties = schema.get("properties") or {}
    unknown = [name for name in arguments if name not in properties]
    missing = [name for name in schema.get("required") or [] if name not in arguments]
    if not unknown:
        return arguments
    if len(unknown) != 1 or len(missing) != 1:
        return None
    value = arguments[unknown[0]]
    if properties[missing[0]].get("type") == "string" and not isinstance(value, str):
        return None
    return {missing[0]: value, **{name: own for name, own in arguments.items() if name != unknown[0]}}
