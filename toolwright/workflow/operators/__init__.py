"""Operators: the kinds of steps a workflow is made of. One file each, found by itself."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from toolwright.failures import UserError, nearest
from toolwright.registry import Registry, load_object
from toolwright.rewards.answers import tagged
from toolwright.tools import TOOLS
from toolwright.tools.call import ToolRequest
from toolwright.tools.offer import Signature

if TYPE_CHECKING:
    from toolwright.workflow.interpreter import Step

# What flows along an edge: text; a yes or no; several texts, one for each sample.
Kind = Literal["text", "flag", "texts"]
# What an added node reads at a port before anybody has rewired it: the task's own fields, what the node
# before it made (`previous`), both in one text, or the feedback of a review.
Source = Literal["problem", "entry_point", "previous", "both", "feedback", "none"]


Inputs = Mapping[str, Any]  # a text, a flag or a list of texts for each port
Settings = Mapping[str, int]


@dataclass(frozen=True)
class Port:
    """An input of an operator."""

    kind: Kind = "text"
    source: Source = "previous"
    required: bool = True


@dataclass(frozen=True)
class NodeSetting:
    """A whole number that a node may set, and the range it is taken from."""

    default: int
    most: int
    least: int = 1


class Operator:
    """One kind of step. Made once, holds nothing, so that any number of tasks may use it at once."""

    name: ClassVar[str]  # as in a workflow, and in AFlow's Python
    ports: ClassVar[Mapping[str, Port]]
    fields: ClassVar[Mapping[str, Kind]]  # what it answers; the first is its main one
    prompted: ClassVar[bool] = False  # whether its words to the model are a prompt of the workflow
    settings: ClassVar[Mapping[str, NodeSetting]] = {}
    needs: ClassVar[frozenset[str]] = frozenset()  # of "sandbox", "entry_point", "public_tests"
    solves: ClassVar[bool] = True  # whether its main field may stand where a solution stood
    may_be_empty: ClassVar[bool] = False  # whether one wants to go on with what was there before

    def calls(self, settings: Settings) -> int:
        """The most calls of the model that one run makes."""
        return 1

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        """A value for every field."""
        raise NotImplementedError

    @property
    def main(self) -> str:
        return next(iter(self.fields))

    @property
    def compares(self) -> str | None:
        """The port for several solutions, if there is one."""
        return next((name for name, port in self.ports.items() if port.kind == "texts"), None)

    @property
    def reads_review(self) -> bool:
        return any(port.source == "feedback" for port in self.ports.values())

    def setting(self, settings: Mapping[str, int], name: str) -> int:
        return settings.get(name, self.settings[name].default)


OPERATORS: Registry[type[Operator]] = Registry("operator", "toolwright.workflow.operators")
CHOOSE = "Choose"  # the operator that is control flow: one of two texts, only the chosen one is computed
JOIN = "Join"  # the operator that only puts texts together
CONTAINS = "Contains"  # the one that only looks for words
PART = "Part"  # and the one that only takes a part of a text
FREE = frozenset({CHOOSE, JOIN, CONTAINS, PART})  # what the interpreter does by itself, at no cost
TASK = "task"  # what stands for the task where a node's name is expected
TASK_FIELDS: Mapping[str, Kind] = {"problem": "text", "entry_point": "text"}
TOOL = "tool."  # what the name of an operator that is a tool begins with
_known: dict[str, Operator] = {}


def operator(name: str) -> Operator:
    """By its name; `tool.NAME` for a registered tool; `path.py:Class` for one of the user's own."""
    if name not in _known:
        _known[name] = _made(name)
    return _known[name]


def is_known(name: str) -> bool:
    try:
        operator(name)
    except UserError:
        return False
    return True


def _made(name: str) -> Operator:
    if name.startswith(TOOL):
        return tool_operator(name.removeprefix(TOOL))
    if ":" in name:
        made = load_object(name)
        if not (isinstance(made, type) and issubclass(made, Operator)):
            raise UserError(f"{name!r} is not an operator; it must be a class derived from Operator")
        return made()
    if name not in OPERATORS.names():
        raise UserError(f"unknown operator {name!r}; {nearest(name, OPERATORS.names())}")
    return OPERATORS.get(name).target()


class ToolOperator(Operator):
    """Makes no call of the model. What the tool says of a wrong argument is its result, as to a policy."""

    fields = {"result": "text"}

    def __init__(self, name: str, schema: Mapping[str, Any], *, needs: frozenset[str]) -> None:
        required = set(schema["required"])
        self._tool = name
        # Of the instance, not of the class: each tool has other ports.
        self.name = f"{TOOL}{name}"  # type: ignore[misc]
        self.ports = {  # type: ignore[misc]
            key: Port(source="previous" if key in required else "none", required=key in required)
            for key in schema["properties"]
        }
        self.needs = needs | {self.name}  # type: ignore[misc]

    def calls(self, settings: Settings) -> int:
        return 0

    async def __call__(self, step: Step, inputs: Inputs, settings: Settings) -> dict[str, Any]:
        arguments = {key: text for key, text in inputs.items() if text != ""}
        return {"result": await step.call_tool(ToolRequest(self._tool, arguments))}


def tool_operator(name: str) -> ToolOperator:
    if name not in TOOLS.names():
        raise UserError(f"unknown operator 'tool.{name}': no such tool; {nearest(name, TOOLS.names())}")
    entry = TOOLS.get(name)
    target: Any = entry.target
    if isinstance(target, type):
        if not hasattr(target, "__call__") or hasattr(target, "tools"):  # noqa: B004 - asked of the class
            raise UserError(f"operator 'tool.{name}': it is a server of several tools, not one")
        signature = Signature(name, types.MethodType(target.__call__, target), doc=target.__doc__)
    else:
        signature = Signature(name, target)
    return ToolOperator(name, signature.schema, needs=frozenset(entry.needs & {"sandbox"}))


_YES = re.compile(r"\b(true|yes|correct|pass(?:es|ed)?)\b", re.IGNORECASE)
_NO = re.compile(r"\b(false|no|not|incorrect|wrong|fail(?:s|ed)?)\b", re.IGNORECASE)


def field(text: str, tag: str) -> str | None:
    """The text of the last `<tag>…</tag>`; a tag that is not closed reaches to the end."""
    found = tagged(text, tag)
    if found is None and (start := text.rfind(f"<{tag}>")) >= 0:
        found = text[start + len(tag) + 2 :].strip()
    return found


def content(reply: str, tag: str) -> str:
    """The tagged part of a reply, or all of it where the tag is missing."""
    found = field(reply, tag)
    return reply.strip() if found is None else found


def letter(text: str, tag: str, count: int) -> int | None:
    """Which of `count` options A, B, C … was chosen."""
    said = field(text, tag)
    found = re.search(r"(?<![A-Za-z])([A-Za-z])(?![A-Za-z])", text[-40:] if said is None else said)
    place = ord(found[1].upper()) - ord("A") if found else -1
    return place if 0 <= place < count else None


def verdict(text: str, tag: str) -> bool:
    """True for a yes. What cannot be read is a no, so that the solution is examined again."""
    said = field(text, tag)
    said = text if said is None else said
    return bool(_YES.search(said)) and not _NO.search(said)
