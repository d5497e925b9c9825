"""An edit applied: another workflow, the old one untouched. And the list of those that may be."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from toolwright.failures import UserError, nearest
from toolwright.workflow import edits
from toolwright.workflow.canonical import snake
from toolwright.workflow.check import kind_of
from toolwright.workflow.edits import Add, Edit, NamedPrompt, Remove, Replace, Rewire
from toolwright.workflow.graph import (
    ENTRY_POINT,
    PROBLEM,
    Node,
    Pieces,
    Ref,
    WorkflowLimits,
    refs_of,
    swapped,
)
from toolwright.workflow.operators import CHOOSE, CONTAINS, TASK, Operator, operator
from toolwright.workflow.program import Workflow

SAMPLES = 3  # that an ensemble compares if nobody says otherwise
SAMPLE_COUNTS = (2, 3, 5)  # that it may compare
_BETWEEN = "\n\n"


def applied(workflow: Workflow, edit: Edit, prompts: Mapping[str, str] | None = None) -> Workflow:
    """The edited workflow, simplified; `prompts` are those that may be named beside its own.

    A UserError where the edit makes no sense here. Whether the result may run is for `problems` to say.
    """
    known = {**(prompts or {}), **workflow.prompts}
    match edit:
        case Add(into=False):
            made = _added_after(workflow, edit)
        case Add():
            made = _added_into(workflow, edit)
        case Remove():
            made = _removed(workflow, _node(workflow, edit.node))
        case Replace():
            made = _replaced(workflow, edit)
        case Rewire():
            made = _rewired(workflow, edit)
        case edits.Set():
            made = _set(workflow, edit)
    return _with_prompts(made, edit, known, old=workflow.by_name).simplified


def legal(
    workflow: Workflow,
    operators: Sequence[str],
    *,
    prompts: Mapping[str, str] | None = None,
    limits: WorkflowLimits | None = None,
    offers: Set[str] | None = None,
) -> dict[Edit, Workflow]:
    """Every edit that leads to another workflow which may run, and that workflow. Of edits that lead to
    equivalent workflows, the first is kept."""
    found: dict[Edit, Workflow] = {}
    seen = {workflow.fingerprint}
    for edit in candidates(workflow, operators, prompts={**(prompts or {}), **workflow.prompts}):
        try:
            made = applied(workflow, edit, prompts)
        except UserError:
            continue
        if made.problems(limits, offers) or made.fingerprint in seen:
            continue
        seen.add(made.fingerprint)
        found[edit] = made
    return found


def candidates(workflow: Workflow, operators: Sequence[str], *, prompts: Iterable[str]) -> Iterator[Edit]:
    """All edits of one word each that could be meant here, without a look at where they lead."""
    named = [NamedPrompt(name) for name in prompts]

    def worded(name: str) -> list[NamedPrompt | None]:
        return [None, *named] if operator(name).prompted else [None]

    solving = [name for name in operators if operator(name).solves]
    for node in workflow.live:
        if node.operator == CONTAINS:
            continue
        for name in solving:
            several = operator(name).compares is not None
            counts: Sequence[int | None] = SAMPLE_COUNTS if several else (None,)
            for prompt in worded(name):
                yield from (Add(name, node.name, False, prompt, count) for count in counts)
                if not several and node.kind.compares is not None:
                    yield Add(name, node.name, True, prompt)
                if name != node.operator and node.operator != CHOOSE:
                    yield Replace(node.name, name, prompt)
        yield Remove(node.name)
        if node.kind.prompted:
            yield from (edits.Set(node.name, "prompt", prompt) for prompt in named)
        if node.repeat > 1:
            yield from (edits.Set(node.name, "repeat", count) for count in SAMPLE_COUNTS)
        for name, setting in node.kind.settings.items():
            now = node.kind.setting(node.settings, name)
            yield from (
                edits.Set(node.name, name, n)
                for n in (now - 1, now + 1)
                if setting.least <= n <= setting.most
            )
    yield from _rewirings(workflow)


def _rewirings(workflow: Workflow) -> Iterator[Edit]:
    for node in workflow.live:
        for port, declared in node.kind.ports.items():
            if declared.source in ("previous", "both") and node.operator != CHOOSE:
                if declared.source == "both":
                    yield Rewire(node.name, port, PROBLEM)
                yield from (
                    Rewire(node.name, port, other.main) for other in workflow.live if other is not node
                )
    yield from (Rewire("", "output", node.main) for node in workflow.live)


def _added_after(workflow: Workflow, edit: Add) -> Workflow:
    before = _node(workflow, edit.node)
    kind = operator(edit.operator)
    if not kind.solves:
        hint = "; add Revise, which brings a review of its own" if edit.operator == "Review" else ""
        raise UserError(f"{edit}: the output of {edit.operator} is not a solution{hint}")
    if kind.compares is not None:
        if before.repeat > 1:
            raise UserError(f"{edit}: {before.name} is sampled and compared already")
        workflow = _with_node(workflow, replace(before, repeat=edit.samples or SAMPLES))
    elif edit.samples is not None:
        raise UserError(f"{edit}: x N is for an operator that compares several solutions")
    new: list[Node] = []

    def added(stem: str, name: str, inputs: Mapping[str, Pieces]) -> Node:
        grown = Workflow((*workflow.nodes, *new), workflow.output)
        node = Node(grown.free_name(stem), name, inputs)
        new.append(node)
        return node

    remarks: Ref | None = None
    if kind.reads_review:
        review = added("review", "Review", {"problem": (PROBLEM,), "solution": (before.main,)})
        remarks = review.main
    node = added(snake(edit.operator), edit.operator, _inputs(kind, (before.main,), remarks=remarks))
    result = node.main
    if remarks is not None:
        right = Ref(remarks.node, "review_result")
        chosen = {"on": (right,), "then": (before.main,), "otherwise": (node.main,)}
        result = added("choose", CHOOSE, chosen).main
    elif kind.may_be_empty:
        chosen = {"on": (node.main,), "then": (node.main,), "otherwise": (before.main,)}
        result = added("choose", CHOOSE, chosen).main
    swap: dict[Ref, Pieces] = {before.main: (result,)}
    nodes = tuple(other.reading(swap) for other in workflow.nodes)
    return Workflow((*nodes, *new), swapped(workflow.output, swap), workflow.prompts)


def _added_into(workflow: Workflow, edit: Add) -> Workflow:
    target = _node(workflow, edit.node)
    port = target.kind.compares
    if port is None:
        raise UserError(f"{edit}: {target.operator} does not compare several solutions")
    kind = operator(edit.operator)
    if not kind.solves:
        raise UserError(f"{edit}: the output of {edit.operator} is not a solution")
    node = Node(workflow.free_name(snake(edit.operator)), edit.operator, _inputs(kind, ()))
    grown = replace(target, inputs={**target.inputs, port: (*target.inputs.get(port, ()), node.main)})
    changed = _with_node(workflow, grown)
    return Workflow((*changed.nodes, node), changed.output, changed.prompts)


def _removed(workflow: Workflow, node: Node) -> Workflow:
    """What the node worked on stands in its place; where it began from the task alone, it is left out."""
    before = _before(workflow, node)
    if before is not None:
        source = workflow.by_name[before.node]
        if source.repeat > 1 and workflow.readers(source.name) == {node.name}:
            workflow = _with_node(workflow, replace(source, repeat=1))
    nodes = []
    for other in workflow.nodes:
        if other is node or other.name == node.name:
            continue
        inputs = {port: _without(pieces, node.name, before) for port, pieces in other.inputs.items()}
        nodes.append(replace(other, inputs=inputs))
    return Workflow(tuple(nodes), _without(workflow.output, node.name, before), workflow.prompts)


def _replaced(workflow: Workflow, edit: Replace) -> Workflow:
    old = _node(workflow, edit.node)
    kind = operator(edit.operator)
    if not kind.solves or old.operator == CHOOSE:
        raise UserError(f"{edit}: one of them makes no solution")
    if kind.reads_review:
        raise UserError(f"{edit}: {edit.operator} needs a review; add it instead")
    before = _before(workflow, old)
    new = Node(
        workflow.free_name(snake(edit.operator)),
        edit.operator,
        _inputs(kind, () if before is None else (before,)),
        prompt=old.prompt if kind.prompted and edit.prompt is None else "",
        repeat=old.repeat,
    )
    swap: dict[Ref, Pieces] = {old.main: (new.main,)}
    nodes = tuple(new if node is old else node.reading(swap) for node in workflow.nodes)
    return Workflow(nodes, swapped(workflow.output, swap), workflow.prompts)


def _rewired(workflow: Workflow, edit: Rewire) -> Workflow:
    if not edit.node:
        return Workflow(workflow.nodes, (edit.source,), workflow.prompts)
    node = _node(workflow, edit.node)
    port = node.kind.ports.get(edit.port)
    if port is None:
        raise UserError(
            f"{edit}: {node.operator} has no input {edit.port!r}; {nearest(edit.port, node.kind.ports)}"
        )
    now = node.inputs.get(edit.port, ())
    pieces: Pieces
    if port.kind == "texts":  # one more of them, or one less
        pieces = tuple(piece for piece in now if piece != edit.source)
        pieces = pieces if len(pieces) < len(now) else (*now, edit.source)
    elif port.source == "both" and edit.source != PROBLEM:
        pieces = (PROBLEM, _BETWEEN, edit.source)
    else:
        pieces = (edit.source,)
    return _with_node(workflow, replace(node, inputs={**node.inputs, edit.port: pieces}))


def _set(workflow: Workflow, edit: edits.Set) -> Workflow:
    node = _node(workflow, edit.node)
    match edit.value:
        case NamedPrompt():
            return workflow  # whom it belongs to is seen by `_with_prompts`
        case int() if edit.what == "repeat":
            return _with_node(workflow, replace(node, repeat=edit.value))
        case value:
            return _with_node(workflow, replace(node, settings={**node.settings, edit.what: value}))


def _with_prompts(workflow: Workflow, edit: Edit, known: Mapping[str, str], old: Container[str]) -> Workflow:
    """The edit's prompt defined, and given to the node that it is for."""
    match edit:
        case Add(prompt=NamedPrompt() as prompt) | Replace(prompt=NamedPrompt() as prompt):
            added = (node for node in workflow.nodes if node.name not in old)
            target = next(node for node in added if node.operator == edit.operator)
        case edits.Set(value=NamedPrompt() as prompt):
            target = _node(workflow, edit.node)
        case _:
            return workflow
    text = prompt.text if prompt.text is not None else known.get(prompt.name)
    if text is None:
        raise UserError(f"{edit}: no prompt {prompt.name!r} is known; {nearest(prompt.name, known)}")
    name = prompt.name
    if workflow.prompts.get(name, text) != text:  # another text under a name that is taken
        used = {**workflow.prompts, **known}
        name = next(new for n in range(2, len(used) + 3) if (new := f"{prompt.name}_{n}") not in used)
    changed = _with_node(workflow, replace(target, prompt=name))
    return Workflow(changed.nodes, changed.output, {**changed.prompts, name: text})


def _inputs(kind: Operator, before: Pieces, *, remarks: Ref | None = None) -> dict[str, Pieces]:
    """What a new node reads; without a node before it, the task alone."""
    inputs: dict[str, Pieces] = {}
    for name, port in kind.ports.items():
        match port.source:
            case "problem":
                inputs[name] = (PROBLEM,)
            case "entry_point":
                inputs[name] = (ENTRY_POINT,)
            case "both":
                inputs[name] = (PROBLEM, _BETWEEN, *before) if before else (PROBLEM,)
            case "previous" if before:
                inputs[name] = before
            case "previous" if port.required:
                raise UserError(f"{kind.name} needs something before it")
            case "feedback" if remarks is not None:
                inputs[name] = (remarks,)
    return inputs


def _before(workflow: Workflow, node: Node) -> Ref | None:
    """What the node works on: the one text it reads that is not the task's; of samples, the first."""
    order = ("then", "otherwise") if node.operator == CHOOSE else tuple(node.kind.ports)
    for port in order:
        declared = node.kind.ports[port]
        if declared.source in ("previous", "both"):
            for ref in refs_of(node.inputs.get(port, ())):
                if ref.node != TASK and kind_of(workflow, ref) in ("text", "texts"):
                    return ref
    return None


def _without(pieces: Pieces, name: str, before: Ref | None) -> Pieces:
    found: list[str | Ref] = []
    for piece in pieces:
        if not isinstance(piece, Ref) or piece.node != name:
            found.append(piece)
        elif before is not None:
            found.append(before)
        elif found and isinstance(found[-1], str):
            found.pop()  # the words before it were its heading
    return tuple(found)


def _node(workflow: Workflow, name: str) -> Node:
    if name not in workflow.by_name:
        raise UserError(f"there is no node {name!r}; {nearest(name, workflow.by_name)}")
    return workflow.by_name[name]


def _with_node(workflow: Workflow, node: Node) -> Workflow:
    nodes = tuple(node if other.name == node.name else other for other in workflow.nodes)
    return Workflow(nodes, workflow.output, workflow.prompts)
