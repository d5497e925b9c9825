"""Under which choices a node is needed: what bounds the calls, and where Python's `if` would stand."""

from __future__ import annotations

from toolwright.workflow.operators import CHOOSE, TASK
from toolwright.workflow.program import Ref, Workflow, refs_of

# The choices that all uses of a node lie under, outermost first: each a `Choose` and its port.
Scope = tuple[tuple[str, str], ...]


def scopes(workflow: Workflow) -> dict[str, Scope]:
    """Each live node's scope: the longest path of choices that all who read it have in common."""
    found: dict[str, Scope] = {}

    def used(ref: Ref, scope: Scope) -> None:
        if ref.node != TASK:
            found[ref.node] = _common(found[ref.node], scope) if ref.node in found else scope

    for ref in refs_of(workflow.output):
        used(ref, ())
    for node in reversed(workflow.live):  # whoever reads a node comes before it
        own = found.get(node.name, ())
        for port, pieces in node.inputs.items():
            branch = node.operator == CHOOSE and port != "on"
            for ref in refs_of(pieces):
                used(ref, (*own, (node.name, port)) if branch else own)
    return found


def most_calls(workflow: Workflow) -> int:
    """Σ over a scope's nodes; of a choice's two branches the dearer one."""
    found = scopes(workflow)
    inside: dict[Scope, int] = {}
    for node in reversed(workflow.live):
        scope = found[node.name]
        inside[scope] = inside.get(scope, 0) + node.calls
    chooses = {node.name: found[node.name] for node in workflow.live if node.operator == CHOOSE}
    for name, scope in sorted(chooses.items(), key=lambda item: -len(item[1])):  # the innermost first
        dearer = max(inside.get((*scope, (name, port)), 0) for port in ("then", "otherwise"))
        inside[scope] = inside.get(scope, 0) + dearer
    return inside.get((), 0)


def _common(one: Scope, other: Scope) -> Scope:
    length = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return one[: min(len(one), len(other)) if length is None else length]
