"""A workflow to look at: a line a node, or a Mermaid flowchart."""

from __future__ import annotations

import difflib

from toolwright.workflow.graph import Node, Pieces, Ref, refs_of
from toolwright.workflow.operators import CHOOSE, TASK
from toolwright.workflow.program import Workflow

_LONGEST = 32  # characters of a literal text that are shown


def as_text(workflow: Workflow, *, literals: bool = True) -> str:
    """Assignments in the order of the data, `->` before what is returned."""
    lines = [f"{node.name} = {_call(node, literals)}" for node in workflow.live]
    return "\n".join([*lines, f"-> {_shown(workflow.output, literals)}"])


def as_changes(before: Workflow, after: Workflow) -> str:
    """What was taken out and what was put in, a line each; prompts by their words where these changed."""
    old, new = (
        [*as_text(flow).splitlines(), *(f"{name}: {text!r}" for name, text in flow.trimmed().prompts.items())]
        for flow in (before, after)
    )
    return "\n".join(line for line in difflib.ndiff(old, new) if line[:2] in ("- ", "+ "))


def as_mermaid(workflow: Workflow) -> str:
    """For a page that draws it; a choice is a diamond, its branches are dotted."""
    lines = ["flowchart TD", "  task([task])"]
    for node in workflow.live:
        if node.operator == CHOOSE:
            lines.append(f"  {node.name}{{{{choose}}}}")
            continue
        words = [node.name if node.name == node.operator.lower() else f"{node.name}: {node.operator}"]
        words += [f"×{node.repeat}"] if node.repeat > 1 else []
        words += [f"<i>{node.prompt}</i>"] if node.prompt else []
        lines.append(f'  {node.name}["{"<br/>".join(words)}"]')
    lines.append("  output([output])")
    for node in workflow.live:
        for port, pieces in node.inputs.items():
            for ref in dict.fromkeys(refs_of(pieces)):
                lines.append(f"  {ref.node} {_arrow(node, port)} {node.name}")
    lines += [f"  {ref.node} --> output" for ref in dict.fromkeys(refs_of(workflow.output))]
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _arrow(node: Node, port: str) -> str:
    if node.operator != CHOOSE:
        return "-->"
    return {"on": "-- if -->", "then": "-. yes .->", "otherwise": "-. no .->"}[port]


def _call(node: Node, literals: bool) -> str:
    if node.operator == CHOOSE:
        on, then, otherwise = (
            _shown(node.inputs.get(port, ()), literals) for port in ("on", "then", "otherwise")
        )
        return f"{then} if {on} else {otherwise}"
    inputs = ", ".join(
        _shown(pieces, literals, several=node.kind.ports[port].kind == "texts")
        for port, pieces in node.inputs.items()
        if pieces
    )
    words = [f"{node.operator}({inputs})"]
    words += [f"x{node.repeat}"] if node.repeat > 1 else []
    words += [f"with {node.prompt}"] if node.prompt else []
    words += [f"{name}={value}" for name, value in node.settings.items()]
    return " ".join(words)


def _shown(pieces: Pieces, literals: bool, *, several: bool = False) -> str:
    words = []
    for piece in pieces:
        if isinstance(piece, Ref):
            words.append(piece.field if piece.node == TASK else str(piece))
        elif literals:
            words.append(repr(piece if len(piece) <= _LONGEST else piece[: _LONGEST - 1] + "…"))
    return f"[{', '.join(words)}]" if several else " + ".join(words) or "''"
