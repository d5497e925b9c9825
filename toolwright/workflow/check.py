"""What is wrong with a workflow, found before it costs a single call."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from toolwright.failures import UserError, nearest
from toolwright.workflow.graph import Node, Pieces, Ref, WorkflowLimits
from toolwright.workflow.operators import CHOOSE, TASK, TASK_FIELDS, Kind, Port, is_known, operator

if TYPE_CHECKING:
    from toolwright.workflow.program import Workflow

MOST_REPEATS = 16
_NEEDS = {
    "sandbox": "a sandbox to run code in, but there is none",
    "entry_point": "tasks that name a function, but these do not",
    "public_tests": "tasks with public tests, but these have none",
}


def problems(workflow: Workflow, limits: WorkflowLimits, offers: Set[str] | None = None) -> list[str]:
    """List all problems. Dead nodes are checked too: a name that does not exist is a mistake there as
    well."""
    found = [*_names(workflow)]
    for node in workflow.nodes:
        found += _node(workflow, node, limits)
        if offers is not None and is_known(node.operator):
            lacking = sorted(node.kind.needs - offers)
            missing = (_NEEDS.get(name, f"{name} among search.operators") for name in lacking)
            found += [f"node {node.name!r}: {node.operator} needs {what}" for what in missing]
    found += [f"output: {text}" for text in _pieces(workflow, workflow.output, Port("text"))]
    if not workflow.output:
        found.append("output: nothing is returned")
    if found:
        return found
    try:
        _acyclic(workflow)
    except UserError as error:
        return [str(error)]
    return [*_sizes(workflow, limits)]


def kind_of(workflow: Workflow, ref: Ref) -> Kind | None:
    """The kind of value of this reference; None if there is no such field."""
    if ref.node == TASK:
        return TASK_FIELDS.get(ref.field)
    node = workflow.by_name.get(ref.node)
    if node is None or not is_known(node.operator):
        return None
    kind = node.kind.fields.get(ref.field)
    return "texts" if kind is not None and node.repeat > 1 else kind


def _names(workflow: Workflow) -> Iterator[str]:
    seen: set[str] = set()
    for node in workflow.nodes:
        if not node.name.isidentifier() or node.name == TASK:
            yield f"{node.name!r} cannot be a node's name: take letters, digits and _, and not {TASK!r}"
        if node.name in seen:
            yield f"two nodes are called {node.name!r}"
        seen.add(node.name)


def _node(workflow: Workflow, node: Node, limits: WorkflowLimits) -> Iterator[str]:
    where = f"node {node.name!r}"
    try:
        kind = node.kind
    except UserError as error:
        yield f"{where}: {error}"
        return
    for name in node.inputs:
        if name not in kind.ports:
            yield f"{where}: {node.operator} has no input {name!r}; {nearest(name, kind.ports)}"
    for name, port in kind.ports.items():
        pieces = node.inputs.get(name, ())
        if port.required and not pieces:
            yield f"{where}: {node.operator} needs the input {name!r}"
        yield from (f"{where}, input {name!r}: {text}" for text in _pieces(workflow, pieces, port))
    if node.prompt and not kind.prompted:
        yield f"{where}: {node.operator} has its own prompt and takes no other"
    if node.prompt and node.prompt not in workflow.prompts:
        yield f"{where}: no prompt {node.prompt!r} is defined; {nearest(node.prompt, workflow.prompts)}"
    if len(workflow.prompts.get(node.prompt, "")) > limits.prompt_chars:
        yield f"{where}: its prompt is longer than {limits.prompt_chars} characters"
    if not 1 <= node.repeat <= MOST_REPEATS or (node.operator == CHOOSE and node.repeat != 1):
        most = 1 if node.operator == CHOOSE else MOST_REPEATS
        yield f"{where}: repeat={node.repeat}, expected 1 to {most}"
    for name, value in node.settings.items():
        known = kind.settings.get(name)
        if known is None:
            yield f"{where}: {node.operator} has no setting {name!r}; {nearest(name, kind.settings)}"
        elif not known.least <= value <= known.most:
            yield f"{where}: {name}={value}, expected {known.least} to {known.most}"


def _pieces(workflow: Workflow, pieces: Pieces, port: Port) -> Iterator[str]:
    for piece in pieces:
        if isinstance(piece, str):
            if port.kind == "flag":
                yield "a literal text where a reference belongs"
            continue
        kind = kind_of(workflow, piece)
        if kind is None:
            if piece.node == TASK:
                yield f"a task has no {piece.field!r}; {nearest(piece.field, TASK_FIELDS)}"
            elif piece.node not in workflow.by_name:
                yield f"{piece}: there is no node {piece.node!r}"
            elif is_known(name := workflow.by_name[piece.node].operator):
                hint = nearest(piece.field, operator(name).fields)
                yield f"{piece}: {name} makes no {piece.field!r}; {hint}"
        elif kind == "texts" and port.kind != "texts":
            yield f"{piece} is several texts, but one is expected; put ScEnsemble between them"
        elif kind == "flag" and port.kind == "texts":
            yield f"{piece} is a yes or no where texts belong"
    if port.kind == "flag" and len(pieces) > 1:
        yield "a condition is one reference"


def _acyclic(workflow: Workflow) -> None:
    """Check that no node depends on itself; dead nodes must not either."""
    if len(workflow.live) < len(workflow.nodes):
        _ = replace(workflow, output=tuple(Ref(node.name, "") for node in workflow.nodes)).live


def _sizes(workflow: Workflow, limits: WorkflowLimits) -> Iterator[str]:
    for what, size, most in (
        ("nodes", len(workflow.live), limits.nodes),
        ("nodes in a row", workflow.depth, limits.depth),
        ("calls of the model for one task", workflow.calls, limits.calls),
    ):
        if size > most:
            yield f"it needs up to {size} {what}, and {most} are allowed"
