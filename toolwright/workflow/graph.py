"""The parts of a workflow: nodes, what they read, and limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from toolwright.failures import UserError
from toolwright.workflow.operators import TASK, Operator, operator


@dataclass(frozen=True, order=True)
class Ref:
    """A reference to a field of a node's result, or of the task: `task.problem`."""

    node: str
    field: str

    def __str__(self) -> str:
        return f"{self.node}.{self.field}"

    @staticmethod
    def of(text: str) -> Ref:
        node, dot, field = text.partition(".")
        if not dot or not node.isidentifier() or not field.isidentifier():
            raise UserError(f"{text!r} is not a reference; write NODE.FIELD, such as solve.response")
        return Ref(node, field)


PROBLEM = Ref(TASK, "problem")
ENTRY_POINT = Ref(TASK, "entry_point")

Piece = str | Ref
Pieces = tuple[Piece, ...]  # at a port for text: joined; at a port for texts: its elements


@dataclass(frozen=True)
class Node:
    """One step. Nodes are immutable: an edit makes another."""

    name: str
    operator: str
    inputs: Mapping[str, Pieces] = field(default_factory=dict)
    prompt: str = ""  # the name of one of the workflow's prompts, where the operator takes one
    repeat: int = 1  # samples to draw; with more than one, every field is several texts
    settings: Mapping[str, int] = field(default_factory=dict)

    @property
    def kind(self) -> Operator:
        return operator(self.operator)

    @property
    def main(self) -> Ref:
        return Ref(self.name, self.kind.main)

    @cached_property
    def refs(self) -> tuple[Ref, ...]:
        return tuple(ref for pieces in self.inputs.values() for ref in refs_of(pieces))

    @property
    def calls(self) -> int:
        """The most model calls of the node for one task."""
        return self.repeat * self.kind.calls(self.settings)

    @cached_property
    def plain(self) -> Node:
        """The same node, neighbouring literals of a text as one and without inputs of nothing."""
        inputs = {
            port: pieces if self.kind.ports[port].kind == "texts" else joined(pieces)
            for port, pieces in self.inputs.items()
            if pieces
        }
        found = self if inputs == self.inputs else replace(self, inputs=inputs)
        found.__dict__["plain"] = found
        return found

    def reading(self, swap: Mapping[Ref, Pieces]) -> Node:
        """The same node with some references replaced."""
        if swap.keys().isdisjoint(self.refs):
            return self
        return replace(self, inputs={port: swapped(pieces, swap) for port, pieces in self.inputs.items()})


@dataclass(frozen=True)
class WorkflowLimits:
    """Limits of a workflow on one task. The first four are checked before any call."""

    calls: int = 20  # of the model, in the worst case
    depth: int = 12  # nodes in a row
    nodes: int = 24
    prompt_chars: int = 8000  # of any one prompt
    seconds: float = 300.0
    tokens: int = 200_000
    money: float | None = None  # US dollars


def refs_of(pieces: Iterable[Piece]) -> Iterator[Ref]:
    for piece in pieces:
        if isinstance(piece, Ref):
            yield piece


def swapped(pieces: Pieces, swap: Mapping[Ref, Pieces]) -> Pieces:
    found: list[Piece] = []
    for piece in pieces:
        found += swap.get(piece, (piece,)) if isinstance(piece, Ref) else (piece,)
    return tuple(found)


def joined(pieces: Iterable[Piece]) -> Pieces:
    """Neighbouring literals as one, empty ones left out."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        elif piece != "":
            found.append(piece)
    return tuple(found)


def pieces_to_json(pieces: Pieces) -> list[Any]:
    return [{"ref": str(piece)} if isinstance(piece, Ref) else piece for piece in pieces]


def pieces_from_json(told: Any) -> Pieces:
    return tuple(Ref.of(piece["ref"]) if isinstance(piece, Mapping) else str(piece) for piece in told)


def node_to_json(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": node.name,
        "operator": node.operator,
        "inputs": {port: pieces_to_json(pieces) for port, pieces in node.inputs.items()},
    }
    if node.prompt:
        told["prompt"] = node.prompt
    if node.repeat != 1:
        told["repeat"] = node.repeat
    if node.settings:
        told["settings"] = dict(node.settings)
    return told


def node_from_json(told: Mapping[str, Any]) -> Node:
    return Node(
        str(told["name"]),
        str(told["operator"]),
        {str(port): pieces_from_json(pieces) for port, pieces in told["inputs"].items()},
        str(told.get("prompt", "")),
        int(told.get("repeat", 1)),
        {str(name): int(value) for name, value in told.get("settings", {}).items()},
    )
