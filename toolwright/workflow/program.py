"""The typed workflow: a program that can be checked, compared with others, and run.

A workflow is evaluated from its output backwards: a node runs when something needs what it makes, and the
branch that a `Choose` does not take never runs. There are no statements, no order but that of the data, and
no loop but `repeat`. So everything a workflow does is bounded before it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any

from toolwright.failures import UserError
from toolwright.workflow import canonical
from toolwright.workflow.check import problems
from toolwright.workflow.graph import (
    ENTRY_POINT,
    PROBLEM,
    Node,
    Pieces,
    Ref,
    WorkflowLimits,
    node_from_json,
    node_to_json,
    pieces_from_json,
    pieces_to_json,
    refs_of,
)
from toolwright.workflow.operators import CHOOSE, FREE, TASK, operator

# The choices that all uses of a node lie under, outermost first: each a `Choose` and its port.
Scope = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Workflow:
    """A program: nodes, what they return, and their prompts. Two with the same `fingerprint` do the same,
    whatever their nodes and prompts are called."""

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
        found: dict[str, Node] = {}

        def visit(refs: Iterable[Ref], readers: tuple[str, ...]) -> None:
            for ref in refs:
                if ref.node in readers:
                    raise UserError(f"node {ref.node!r} reads its own output")
                if ref.node != TASK and ref.node in self.by_name and ref.node not in found:
                    node = self.by_name[ref.node]
                    visit(node.refs, (*readers, node.name))
                    found[node.name] = node

        visit(refs_of(self.output), ())
        return tuple(found.values())

    def readers(self, name: str) -> set[str]:
        """The nodes that read a node; "" stands for the output."""
        reading = [("", refs_of(self.output)), *((node.name, node.refs) for node in self.nodes)]
        return {reader for reader, refs in reading if any(ref.node == name for ref in refs)}

    @cached_property
    def scopes(self) -> dict[str, Scope]:
        """Each live node's scope: the longest path of choices that all its readers share. It bounds the
        calls, and says where Python's `if` would stand."""
        found: dict[str, Scope] = {}

        def used(ref: Ref, scope: Scope) -> None:
            if ref.node != TASK:
                pairs = zip(found.get(ref.node, scope), scope, strict=False)
                found[ref.node] = tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

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

    def trimmed(self) -> Workflow:
        """Without dead nodes and unused prompts, nodes in the order of the data."""
        used = {node.prompt for node in self.live}
        prompts = {name: text for name, text in self.prompts.items() if name in used}
        return Workflow.ordered(self.live, self.output, prompts)

    @staticmethod
    def ordered(nodes: tuple[Node, ...], output: Pieces, prompts: Mapping[str, str]) -> Workflow:
        """A workflow whose nodes are known to be `live`, each after those that it reads."""
        found = Workflow(nodes, output, prompts)
        found.__dict__["live"] = nodes
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "nodes": [node_to_json(node) for node in self.nodes],
            "output": pieces_to_json(self.output),
            "prompts": dict(self.prompts),
        }

    @staticmethod
    def from_json(source: Mapping[str, Any] | str) -> Workflow:
        try:
            found: Mapping[str, Any] = json.loads(source) if isinstance(source, str) else source
            if not isinstance(found, Mapping):
                raise TypeError(f"expected an object with `nodes` and `output`, found {type(found).__name__}")
            return Workflow(
                tuple(node_from_json(node) for node in found["nodes"]),
                pieces_from_json(found["output"]),
                {str(name): str(text) for name, text in found.get("prompts", {}).items()},
            )
        except KeyError as error:
            raise UserError(f"this is not a workflow in JSON: {error} is missing") from None
        except (TypeError, AttributeError, ValueError) as error:
            raise UserError(f"this is not a workflow in JSON: {error}") from None

    @cached_property
    def simplified(self) -> Workflow:
        """An equivalent workflow without anything that has no effect."""
        found = canonical.simplify(self)
        found.__dict__["simplified"] = found
        return found

    @cached_property
    def fingerprint(self) -> str:
        """A hash that is equal for equivalent workflows. Names, order and dead nodes do not count."""
        return canonical.fingerprint(self.simplified)

    @cached_property
    def identities(self) -> dict[str, tuple[str, int]]:
        """For each live node a hash of what it computes, and the number of its first sample."""
        return canonical.identities(self)

    def problems(self, limits: WorkflowLimits | None = None, offers: Set[str] | None = None) -> list[str]:
        """List everything that is wrong with it; an empty list for one that may run. Makes no call.

        `offers` names what the tasks and the machine have of the operators' `needs`; None: all of it.
        """
        return problems(self, limits or WorkflowLimits(), offers)

    def checked(self) -> Workflow:
        """Return it, or raise a UserError with its first problem."""
        if found := self.problems():
            raise UserError(f"the workflow cannot run: {found[0]}")
        return self


def single_call(operator_name: str = "Custom", prompt: str = "") -> Workflow:
    """The smallest workflow, which every search starts from: one call, no prompt or the one given."""
    inputs: dict[str, Pieces] = {}
    for port, declared in operator(operator_name).ports.items():
        if declared.source == "entry_point":
            inputs[port] = (ENTRY_POINT,)
        elif declared.required:
            inputs[port] = (PROBLEM,)
    prompts = {"SOLVE_PROMPT": prompt} if prompt else {}
    node = Node("solve", operator_name, inputs, prompt="SOLVE_PROMPT" if prompt else "")
    return Workflow((node,), (node.main,), prompts)
