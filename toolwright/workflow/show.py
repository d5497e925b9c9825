"""A search in the terminal: the tree with its scores, the best workflow, the way to it, what it cost."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.observe.attempt import visible
from toolwright.workflow.aflow.write import write
from toolwright.workflow.diagram import as_text
from toolwright.workflow.record import CandidateRow, Record

MOST_CHILDREN = 4  # of a candidate, without --full: the best


def summary(name: str, record: Record) -> str:
    """What one wants to know first."""
    start, best = record.start, record.winner
    runs = sum(row.runs for row in record.rows)
    lines = [
        f"{name}: {len(record.rows)} candidates, {runs} runs, ended: {record.why or 'not yet'}",
        *("    " + line for line in as_text(best.workflow).splitlines()),
        f"  start   {_score(start)}",
        f"  best    {_score(best)}  {100 * (best.score - start.score):+.1f} points",
    ]
    if record.held_out:
        before, after = record.held_out["start"], record.held_out["best"]
        lines.append(
            f"  unseen  {100 * after:5.1f} % against {100 * before:.1f} % of the start, "
            f"{100 * (after - before):+.1f} points"
        )
    lines.append(f"  cost    ${best.cost:.5f} a task, the start's ${start.cost:.5f}")
    return "\n".join(lines)


def tree(record: Record, *, full: bool) -> Iterator[str]:
    """A line a candidate, below its parent; those on the way to the best are marked."""
    way = {row.number for row in record.path}

    def below(row: CandidateRow, indent: str, last: bool) -> Iterator[str]:
        branch = "" if row.parent is None else "└─ " if last else "├─ "
        mark = "*" if row.number in way else " "
        yield f"{mark} {indent}{branch}{row.number:<3} {_found(row)}  {visible(row.edit) or 'start'}"
        children = sorted(record.children(row.number), key=lambda r: (bool(r.failure), -r.score, r.number))
        kept = (
            children if full else [r for i, r in enumerate(children) if i < MOST_CHILDREN or r.number in way]
        )
        inner = indent if row.parent is None else indent + ("   " if last else "│  ")
        for place, child in enumerate(kept):
            yield from below(child, inner, place == len(kept) - 1 and len(kept) == len(children))
        if len(kept) < len(children):
            yield f"  {inner}└─ … {len(children) - len(kept)} more"

    yield from below(record.start, "", True)


def path(record: Record) -> Iterator[str]:
    for row in record.path:
        yield f"  {row.number:<3} {_found(row)}  {visible(row.edit) or 'start'}"


def curve(record: Record) -> Iterator[str]:
    """Cost against score: whenever there was a new best."""
    yield f"  {'runs':>6} {'cost':>9} {'best':>7}"
    before = None
    for moment in record.curve:
        if moment.best != before or moment is record.curve[-1]:
            spent = f"${moment.cost:.4f}"
            yield f"  {moment.runs:>6} {spent:>9} {100 * moment.score:>6.1f}%  candidate {moment.best}"
        before = moment.best


def code(record: Record) -> str:
    """AFlow's form of the best."""
    graph, prompt = write(record.winner.workflow)
    return f"# graph.py\n{graph}\n# prompt.py\n{prompt}"


def _score(row: CandidateRow) -> str:
    return f"{100 * row.score:5.1f} % ± {100 * row.sd:.1f} ({row.runs} runs)"


def _found(row: CandidateRow) -> str:
    if row.failure:
        return f"refused: {visible(row.failure)}"
    failed = f", {sum(row.failures.values())} failed" if row.failures else ""
    return f"{100 * row.score:5.1f} ±{100 * row.sd:4.1f} ({row.runs:>3} runs{failed})"
