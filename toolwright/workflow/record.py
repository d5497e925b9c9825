"""The record of a search in its run folder, and how the terminal shows it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from toolwright.failures import UserError, nearest
from toolwright.observe.attempt import visible
from toolwright.workflow.aflow.write import write
from toolwright.workflow.diagram import as_text
from toolwright.workflow.program import Workflow
from toolwright.workflow.search_loop import CurvePoint, WorkflowSearch

FOLDER = "searches"


@dataclass(frozen=True)
class CandidateRow:
    """One candidate at the time of writing."""

    number: int
    parent: int | None
    edit: str
    score: float  # estimated
    sd: float
    mean: float  # of its runs, as they are
    runs: int
    cost: float  # US dollars a task
    failure: str  # why it was refused
    failures: dict[str, int]  # of its runs
    program: dict[str, object]

    @property
    def workflow(self) -> Workflow:
        return Workflow.from_json(self.program)


@dataclass(frozen=True)
class Record:
    setting: str
    select: str
    budget: int
    best: int
    why: str  # it ended; empty while it goes on
    rows: Sequence[CandidateRow]
    curve: Sequence[CurvePoint]
    held_out: dict[str, float]  # scores on tasks that the search never saw, of `start` and `best`

    @classmethod
    def of(cls, search: WorkflowSearch, *, select: str, held_out: dict[str, float] | None = None) -> Record:
        rows, scores = [], search.scores
        for c in search.tree:
            score, sd = scores.get(c.number, (0.0, 0.0))
            estimated = (score, sd, c.mean, len(c.runs), c.cost)
            wrong = (c.failure, c.failures)
            rows.append(CandidateRow(c.number, c.parent, c.edit, *estimated, *wrong, c.workflow.to_json()))
        about = (search.setting, select, search.runs, search.best.number, search.why)
        return cls(*about, rows, search.rounds, held_out or {})

    @property
    def runs(self) -> int:
        """Runs of all candidates."""
        return sum(row.runs for row in self.rows)

    @property
    def start(self) -> CandidateRow:
        return self.rows[0]

    @property
    def expected(self) -> float:
        """What the best is expected to score on other tasks."""
        return self.curve[-1].score

    @property
    def winner(self) -> CandidateRow:
        return self.rows[self.best]

    @property
    def path(self) -> list[CandidateRow]:
        """From the start to the best."""
        found = [self.winner]
        while (parent := found[-1].parent) is not None:
            found.append(self.rows[parent])
        return found[::-1]

    def children(self, number: int) -> list[CandidateRow]:
        return [row for row in self.rows if row.parent == number]

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        # Not `asdict`, which copies every program: the file is written after each round.
        partial.write_text(json.dumps(self, ensure_ascii=False, default=vars), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            names = {field.name for field in fields(CandidateRow)}  # older files have more
            told["rows"] = [
                CandidateRow(**{name: row[name] for name in row.keys() & names}) for row in told["rows"]
            ]
            told["curve"] = [CurvePoint(**point) for point in told["curve"]]
            return cls(**told)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f"{path} cannot be read as a search: {error}") from None


def records(run: Path) -> dict[str, Record]:
    """Load the searches of a run folder, by data set."""
    return {path.stem: Record.load(path) for path in sorted((run / FOLDER).glob("*.json"))}


def found_in(run: Path, data: str | None) -> dict[str, Record]:
    """The searches of a run folder: of one data set, or of all. It is an error if there are none."""
    found = records(run)
    if not found:
        raise UserError(f"{run} holds no search: it has no {FOLDER}/*.json")
    if data is not None and data not in found:
        raise UserError(f"{run} holds no search of {data!r}; {nearest(data, found)}")
    return {name: record for name, record in found.items() if data in (None, name)}


MOST_CHILDREN = 4  # of a candidate, without --full: the best


def summary(name: str, record: Record) -> str:
    """A summary of the search."""
    start, best = record.start, record.winner
    lines = [
        f"{name}: {len(record.rows)} candidates, {record.runs} runs, ended: {record.why or 'not yet'}",
        *("    " + line for line in as_text(best.workflow).splitlines()),
        f"  start   {_score(start)}",
        f"  best    {_score(best)}  {100 * (best.score - start.score):+.1f} points; "
        f"{100 * record.expected:.1f} % expected on other tasks",
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
    """One line a candidate, below its parent; those on the path to the best are marked."""
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
    """Cost against score, at every new best."""
    yield f"  {'runs':>6} {'cost':>9} {'best':>7}"
    before = None
    for point in record.curve:
        if point.best != before or point is record.curve[-1]:
            spent = f"${point.cost:.4f}"
            yield f"  {point.runs:>6} {spent:>9} {100 * point.score:>6.1f}%  candidate {point.best}"
        before = point.best


def code(record: Record) -> str:
    """The best workflow in AFlow's form."""
    graph, prompt = write(record.winner.workflow)
    return f"# graph.py\n{graph}\n# prompt.py\n{prompt}"


def _score(row: CandidateRow) -> str:
    return f"{100 * row.score:5.1f} % ± {100 * row.sd:.1f} ({row.runs} runs)"


def _found(row: CandidateRow) -> str:
    if row.failure:
        return f"refused: {visible(row.failure)}"
    failed = f", {sum(row.failures.values())} failed" if row.failures else ""
    return f"{100 * row.score:5.1f} ±{100 * row.sd:4.1f} ({row.runs:>3} runs{failed})"
