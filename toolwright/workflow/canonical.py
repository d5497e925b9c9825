"""The meaning of a workflow: equal for workflows that differ only in names, order or dead nodes."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from toolwright.workflow.graph import Node, Piece, Pieces, Ref, joined, refs_of, swapped
from toolwright.workflow.operators import CHOOSE, TASK

if TYPE_CHECKING:
    from toolwright.workflow.program import Workflow

_ROUNDS = 2  # of looking up and down the graph; workflows are far too small to need more


def fingerprint(plain: Workflow) -> str:
    """Hash a simplified workflow, nodes by their place and prompts by their text."""
    numbers = {name: place for place, name in enumerate(_order(plain))}

    def shown(ref: Ref) -> list[Any]:
        return [numbers.get(ref.node, TASK), ref.field]

    lists: list[Any] = [_as_lists(plain, plain.by_name[name], shown) for name in numbers]
    lists.append([_piece(piece, shown) for piece in plain.output])
    return hashlib.sha256(json.dumps(lists).encode()).hexdigest()[:24]


def identities(workflow: Workflow) -> dict[str, tuple[str, int]]:
    """For each live node what it computes, and how many samples of just that come before its own.

    The same step has the same identity in every workflow that takes it: so it draws the same samples, which
    makes workflows comparable on one task, and what was asked once is not paid for again.
    """
    seen: dict[str, str] = {TASK: TASK}
    for node in workflow.live:
        repeats = {ref.node: workflow.by_name[ref.node].repeat for ref in node.refs if ref.node != TASK}
        lists = _as_lists(
            workflow,
            replace(node, repeat=1),
            lambda ref: [seen[ref.node], ref.field, repeats.get(ref.node, 1)],  # noqa: B023 - called at once
        )
        seen[node.name] = _hash(lists)
    drawn: Counter[str] = Counter()
    found = {}
    for name in _order(workflow):
        found[name] = (seen[name], drawn[seen[name]])
        drawn[seen[name]] += workflow.by_name[name].repeat
    return found


def simplify(workflow: Workflow) -> Workflow:
    """Remove dead nodes, resolve choices between equals, and join single samples into one repeated node."""
    workflow = _prompts_once(workflow.trimmed())
    while True:
        simpler = _chosen(_merged(workflow))
        if simpler is workflow:
            return workflow
        workflow = simpler.trimmed()


def snake(name: str) -> str:
    """`ScEnsemble` as `sc_ensemble`; a path or a tool's name by its last word."""
    last = re.split(r"[.:/]", name)[-1]
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", last).lower()


def _prompts_once(workflow: Workflow) -> Workflow:
    """Prompts of the same words under the first of their names, and those of no words under none."""
    first: dict[str, str] = {"": ""}
    for name in sorted(workflow.prompts):
        first.setdefault(_words(workflow.prompts[name]), name)
    nodes = []
    for node in workflow.nodes:
        known = node.prompt in workflow.prompts  # one that is not defined stays, to be complained about
        prompt = first[_words(workflow.prompts[node.prompt])] if known else node.prompt
        nodes.append(node.plain if prompt == node.prompt else replace(node.plain, prompt=prompt))
    kept = set(first.values())
    prompts = {name: text for name, text in workflow.prompts.items() if name in kept and name}
    return type(workflow).ordered(tuple(nodes), joined(workflow.output), prompts)


def _chosen(workflow: Workflow) -> Workflow:
    """`Choose` between two equal texts is that text."""
    swap: dict[Ref, Pieces] = {}
    listed = {
        ref.node
        for node in workflow.nodes
        for port, pieces in node.inputs.items()
        if node.kind.ports[port].kind == "texts"
        for ref in refs_of(pieces)
    }
    for node in workflow.nodes:
        branch = node.inputs.get("then", ())
        # In a list several pieces would be several elements.
        fits = len(branch) == 1 or node.name not in listed
        if node.operator == CHOOSE and branch == node.inputs.get("otherwise", ()) and fits:
            swap[node.main] = branch
            break  # what takes its place may be another of them
    if not swap:
        return workflow
    nodes = tuple(node.reading(swap) for node in workflow.nodes)
    return type(workflow)(nodes, joined(swapped(workflow.output, swap)), workflow.prompts)


def _merged(workflow: Workflow) -> Workflow:
    """Nodes that are alike, and are read by the same list and by nothing else, are samples of one."""
    readers: dict[str, list[tuple[str, str, str]]] = {}
    alone: set[str] = {ref.node for ref in refs_of(workflow.output)}
    for node in workflow.nodes:
        for port, pieces in node.inputs.items():
            for ref in refs_of(pieces):
                readers.setdefault(ref.node, []).append((node.name, port, ref.field))
                if node.kind.ports[port].kind != "texts":
                    alone.add(ref.node)
    groups: dict[str, list[Node]] = {}
    for node in workflow.nodes:
        if node.name not in alone and node.operator != CHOOSE:
            alike = replace(node, name="", repeat=1)
            key = repr((sorted(readers.get(node.name, [])), alike.operator, sorted(alike.inputs.items())))
            groups.setdefault(key + repr((alike.prompt, sorted(alike.settings.items()))), []).append(node)
    nodes = {node.name: node for node in workflow.nodes}
    gone: set[str] = set()
    for first, *others in groups.values():
        if others:
            nodes[first.name] = replace(first, repeat=first.repeat + sum(other.repeat for other in others))
            gone |= {other.name for other in others}
    if not gone:
        return workflow
    swap: dict[Ref, Pieces] = {ref: () for node in workflow.nodes for ref in node.refs if ref.node in gone}
    kept = tuple(node.reading(swap) for name, node in nodes.items() if name not in gone)
    return type(workflow)(kept, workflow.output, workflow.prompts)


def _order(workflow: Workflow) -> list[str]:
    """The nodes, each after what it reads; the same for graphs that differ in names alone."""
    several = any(
        len(pieces) > 1 and node.kind.ports[port].kind == "texts"
        for node in workflow.live
        for port, pieces in node.inputs.items()
    )
    colours = _colours(workflow) if several else {}  # without a set to order, the way from the output is one
    order: list[str] = []

    def visit(pieces: Pieces, *, as_set: bool) -> None:
        refs = list(refs_of(pieces))
        if as_set:  # which of several samples stands first means nothing
            refs.sort(key=lambda ref: (colours.get(ref.node, ""), ref.field))
        for ref in refs:
            if ref.node != TASK and ref.node not in order:
                node = workflow.by_name[ref.node]
                for port in sorted(node.inputs):
                    visit(node.inputs[port], as_set=node.kind.ports[port].kind == "texts")
                order.append(ref.node)

    visit(workflow.output, as_set=False)
    return order


def _colours(workflow: Workflow) -> dict[str, str]:
    """What each node looks like from its own place: by what it reads, and by who reads it."""
    colours: dict[str, str] = {}
    above: dict[str, str] = {}
    for _ in range(_ROUNDS):
        seen: dict[str, str] = {TASK: TASK}
        for node in workflow.live:
            lists = _as_lists(workflow, node, lambda ref: [seen[ref.node], ref.field])  # noqa: B023
            seen[node.name] = _hash([lists, above.get(node.name, "")])
        colours = seen
        uses: dict[str, list[Any]] = {node.name: [] for node in workflow.live}
        for place, piece in enumerate(workflow.output):
            if isinstance(piece, Ref) and piece.node != TASK:
                uses[piece.node].append(["output", place, piece.field])
        for node in reversed(workflow.live):
            above[node.name] = _hash(sorted(json.dumps(use) for use in uses[node.name]))
            for port, pieces in node.inputs.items():
                ordered = node.kind.ports[port].kind != "texts"
                for place, piece in enumerate(pieces):
                    if isinstance(piece, Ref) and piece.node != TASK:
                        use = [colours[node.name], above[node.name], port, place if ordered else 0]
                        uses[piece.node].append([*use, piece.field])
    return {name: _hash([colour, above.get(name, "")]) for name, colour in colours.items()}


def _as_lists(workflow: Workflow, node: Node, shown: Any) -> list[Any]:
    """A node as plain lists, its name left out."""
    kind = node.kind
    inputs: list[Any] = []
    for port in sorted(node.inputs):
        pieces = [_piece(piece, shown) for piece in node.inputs[port]]
        if len(pieces) > 1 and kind.ports[port].kind == "texts":
            pieces.sort(key=json.dumps)
        inputs.append([port, pieces])
    settings = [[name, kind.setting(node.settings, name)] for name in sorted(kind.settings)]
    words = _words(workflow.prompts.get(node.prompt, node.prompt))
    return [node.operator, inputs, words, node.repeat, settings]


def _piece(piece: Piece, shown: Any) -> Any:
    return shown(piece) if isinstance(piece, Ref) else re.sub(r"\s+", " ", piece)


def _words(text: str) -> str:
    return " ".join(text.split())


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
