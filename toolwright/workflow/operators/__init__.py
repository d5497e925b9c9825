"""Operators: the kinds of steps a workflow is made of. One file each, found by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from toolwright.failures import UserError, nearest
from toolwright.registry import Registry, load_object

if TYPE_CHECKING:
    from toolwright.workflow.run import Step

# What flows along an edge: text; a yes or no; several texts, one for each sample.
Kind = Literal["text", "flag", "texts"]
# What an added node reads at a port before anybody has rewired it: the task's own fields, what the node
# before it made (`previous`), both in one text, or the feedback of a review.
Source = Literal["problem", "entry_point", "previous", "both", "feedback", "none"]


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

    def calls(self, settings: Mapping[str, int]) -> int:
        """The most calls of the model that one run makes."""
        return 1

    async def __call__(
        self, step: Step, inputs: Mapping[str, Any], settings: Mapping[str, int]
    ) -> dict[str, Any]:
        """A value for every field."""
        raise NotImplementedError

    @property
    def main(self) -> str:
        return next(iter(self.fields))

    def setting(self, settings: Mapping[str, int], name: str) -> int:
        return settings.get(name, self.settings[name].default)


OPERATORS: Registry[type[Operator]] = Registry("operator", "toolwright.workflow.operators")
CHOOSE = "Choose"  # the operator that is control flow: one of two texts, only the chosen one is computed
JOIN = "Join"  # the operator that only puts texts together
CONTAINS = "Contains"  # and the one that only looks for words
FREE = frozenset({CHOOSE, JOIN, CONTAINS})  # what the interpreter does by itself, at no cost
TASK = "task"  # what stands for the task where a node's name is expected
TASK_FIELDS: Mapping[str, Kind] = {"problem": "text", "entry_point": "text"}
_TOOL = "tool."
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
    if name.startswith(_TOOL):
        from toolwright.workflow.operators.tool import tool_operator

        return tool_operator(name.removeprefix(_TOOL))
    if ":" in name:
        made = load_object(name)
        if not (isinstance(made, type) and issubclass(made, Operator)):
            raise UserError(f"{name!r} is no operator: it must be a class derived from Operator")
        return made()
    if name not in OPERATORS.names():
        raise UserError(f"unknown operator {name!r}; {nearest(name, OPERATORS.names())}")
    return OPERATORS.get(name).target()
