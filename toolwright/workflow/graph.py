"""The graph of a workflow: operators as nodes, data flow as edges, prompts as parameters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from toolwright.failures import UserError
from toolwright.workflow.operators import CHOOSE, FREE, TASK, Operator, operator

# The choices that all uses of a node lie under, outermost first: each a `Choose` and its port.
Scope = tuple[tuple[str, str], ...]


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


@dataclass(frozen=True)
class Graph:
    """Nodes, what they return, and their prompts."""

    nodes: tuple[Node, ...]
    output: Pieces
    prompts: Mapping[str, str] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields alone: cached properties are computed again."""
        return {"nodes": self.nodes, "output": self.output, "prompts": self.prompts}

    @cached_property
    def by_name(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def live(self) -> tuple[Node, ...]:
        """The nodes that the output may need, each after those that it reads."""
        order: list[Node] = []
        done: set[str] = set()
        on_the_way: set[str] = set()

        def visit(refs: Iterable[Ref]) -> None:
            for ref in refs:
                if ref.node == TASK or ref.node in done or ref.node not in self.by_name:
                    continue
                if ref.node in on_the_way:
                    raise UserError(f"node {ref.node!r} reads its own output")
                node = self.by_name[ref.node]
                on_the_way.add(ref.node)
                visit(node.refs)
                on_the_way.discard(ref.node)
                done.add(ref.node)
                order.append(node)

        visit(refs_of(self.output))
        return tuple(order)

    @cached_property
    def consumers(self) -> dict[str, list[tuple[str, str]]]:
        """For each node, the nodes and ports that read it; the output is `("", "output")`."""
        found: dict[str, list[tuple[str, str]]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for port, pieces in node.inputs.items():
                for ref in refs_of(pieces):
                    found.setdefault(ref.node, []).append((node.name, port))
        for ref in refs_of(self.output):
            found.setdefault(ref.node, []).append(("", "output"))
        return found

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """Each live node's scope: the longest path of choices that all its readers share. It bounds the
        calls, and says where Python's `if` would stand."""
        found: dict[str, Scope] = {}

        def used(ref: Ref, scope: Scope) -> None:
            if ref.node != TASK:
                found[ref.node] = _common(found[ref.node], scope) if ref.node in found else scope

        for ref in refs_of(self.output):
            used(ref, ())
        for node in reversed(self.live):  # whoever reads a node comes before it
            own = found.get(node.name, ())
            for port, pieces in node.inputs.items():
                branch = node.operator == CHOOSE and port != "on"
                for ref in refs_of(pieces):
                    used(ref, (*own, (node.name, port)) if branch else own)
        return found

    @cached_property
    def calls(self) -> int:
        """The most model calls for one task: the sum over nodes; of two branches the more expensive one."""
        found = self.scopes
        inside: dict[Scope, int] = {}
        for node in reversed(self.live):
            scope = found[node.name]
            inside[scope] = inside.get(scope, 0) + node.calls
        chooses = {node.name: found[node.name] for node in self.live if node.operator == CHOOSE}
        for name, scope in sorted(chooses.items(), key=lambda item: -len(item[1])):  # the innermost first
            dearer = max(inside.get((*scope, (name, port)), 0) for port in ("then", "otherwise"))
            inside[scope] = inside.get(scope, 0) + dearer
        return inside.get((), 0)

    @cached_property
    def depth(self) -> int:
        """The most nodes in a row. Nodes without a model call do not count."""
        deep: dict[str, int] = {TASK: 0}
        for node in self.live:
            above = max((deep.get(ref.node, 0) for ref in node.refs), default=0)
            deep[node.name] = above + (node.operator not in FREE)
        return max((deep.get(ref.node, 0) for ref in refs_of(self.output)), default=0)

    def free_name(self, stem: str) -> str:
        """`stem`, or with the first number that makes it new."""
        taken = {*self.by_name, TASK}
        if stem not in taken:
            return stem
        return next(name for n in range(2, len(taken) + 3) if (name := f"{stem}_{n}") not in taken)

    def trimmed(self) -> Self:
        """Without dead nodes and unused prompts, nodes in the order of the data."""
        used = {node.prompt for node in self.live}
        prompts = {name: text for name, text in self.prompts.items() if name in used}
        return type(self).ordered(self.live, self.output, prompts)

    @classmethod
    def ordered(cls, nodes: tuple[Node, ...], output: Pieces, prompts: Mapping[str, str]) -> Self:
        """A graph whose nodes are known to be `live`, each after those that it reads."""
        found = cls(nodes, output, prompts)
        found.__dict__["live"] = nodes
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [_node_to_json(node) for node in self.nodes],
            "output": _pieces_to_json(self.output),
            "prompts": dict(self.prompts),
        }

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str) -> Self:
        try:
            found: Mapping[str, Any] = json.loads(source) if isinstance(source, str) else source
            if not isinstance(found, Mapping):
                raise TypeError(f"expected an object with `nodes` and `output`, found {type(found).__name__}")
            return cls(
                tuple(_node_from_json(node) for node in found["nodes"]),
                _pieces_from_json(found["output"]),
                {str(name): str(text) for name, text in found.get("prompts", {}).items()},
            )
        except KeyError as error:
            raise UserError(f"this is not a workflow in JSON: {error} is missing") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise UserError(f"this is not a workflow in JSON: {error}") from None


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


def _pieces_to_json(pieces: Pieces) -> list[Any]:
    return [{"ref": str(piece)} if isinstance(piece, Ref) else piece for piece in pieces]


def _pieces_from_json(told: Any) -> Pieces:
    return tuple(Ref.of(piece["ref"]) if isinstance(piece, Mapping) else str(piece) for piece in told)


def _node_to_json(node: Node) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": node.name,
        "operator": node.operator,
        "inputs": {port: _pieces_to_json(pieces) for port, pieces in node.inputs.items()},
    }
    if node.prompt:
        told["prompt"] = node.prompt
    if node.repeat != 1:
        told["repeat"] = node.repeat
    if node.settings:
        told["settings"] = dict(node.settings)
    return told


def _node_from_json(told: Mapping[str, Any]) -> Node:
    return Node(
        str(told["name"]),
        str(told["operator"]),
        {str(port): _pieces_from_json(pieces) for port, pieces in told["inputs"].items()},
        str(told.get("prompt", "")),
        int(told.get("repeat", 1)),
        {str(name): int(value) for name, value in told.get("settings", {}).items()},
    )


def _common(one: Scope, other: Scope) -> Scope:
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: min(len(one), len(other)) if length is None else length]
