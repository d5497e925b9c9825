"""A workflow to look at: a line a node."""

from __future__ import annotations

from toolwright.workflow.graph import Node, Pieces, Ref
from toolwright.workflow.operators import CHOOSE, TASK
from toolwright.workflow.program import Workflow

_LONGEST = 32  # characters of a literal text that are shown


def as_text(workflow: Workflow) -> str:
    """Assignments in the order of the data, `->` before what is returned."""
    lines = [f"{node.name} = {_call(node)}" for node in workflow.live]
    return "\n".join([*lines, f"-> {_shown(workflow.output)}"])


def _call(node: Node) -> str:
    if node.operator == CHOOSE:
        on, then, otherwise = (_shown(node.inputs.get(port, ())) for port in ("on", "then", "otherwise"))
        return f"{then} if {on} else {otherwise}"
    inputs = ", ".join(
        _shown(pieces, several=node.kind.ports[port].kind == "texts")
        for port, pieces in node.inputs.items()
        if pieces
    )
    words = [f"{node.operator}({inputs})"]
    words += [f"x{node.repeat}"] if node.repeat > 1 else []
    words += [f"with {node.prompt}"] if node.prompt else []
    words += [f"{name}={value}" for name, value in node.settings.items()]
    return " ".join(words)


def _shown(pieces: Pieces, *, several: bool = False) -> str:
    words = []
    for piece in pieces:
        if isinstance(piece, Ref):
            words.append(piece.field if piece.node == TASK else str(piece))
        else:
            words.append(repr(piece if len(piece) <= _LONGEST else piece[: _LONGEST - 1] + "…"))
    return f"[{', '.join(words)}]" if several else " + ".join(words) or "''"
