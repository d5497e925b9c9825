"""What a search leaves in its run folder: the tree, its scores, the way to the best; a file a data set."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from toolwright.failures import UserError
from toolwright.workflow.program import Workflow
from toolwright.workflow.search_loop import WorkflowSearch

FOLDER = "searches"


@dataclass(frozen=True)
class CandidateRow:
    """One candidate, as it was known when the file was written."""

    number: int
    parent: int | None
    edit: str
    score: float  # as believed
    sd: float
    mean: float  # of its runs, as they are
    runs: int
    cost: float  # US dollars a task
    prior: float
    failure: str  # why it was refused
    failures: dict[str, int]  # of its runs
    program: dict[str, object]

    @property
    def workflow(self) -> Workflow:
        return Workflow.from_json(self.program)


@dataclass(frozen=True)
class Moment:
    """The search after a round."""

    runs: int
    cost: float
    best: int
    score: float


@dataclass(frozen=True)
class Record:
    setting: str
    select: str
    budget: int
    best: int
    why: str  # it ended; empty while it goes on
    rows: Sequence[CandidateRow]
    curve: Sequence[Moment]
    held_out: dict[str, float]  # scores on tasks that the search never saw, of `start` and `best`

    @classmethod
    def of(
        cls, search: WorkflowSearch, *, select: str, why: str = "", held_out: dict[str, float] | None = None
    ) -> Record:
        rows = []
        for c in search.tree:
            score, sd = search.selection.score(c) if c.runs else (0.0, 0.0)
            program = c.workflow.to_json()
            rows.append(
                CandidateRow(
                    c.number,
                    c.parent,
                    c.edit,
                    score,
                    sd,
                    c.mean,
                    len(c.runs),
                    c.cost,
                    c.prior,
                    c.failure,
                    c.failures,
                    program,
                )
            )
        curve = [Moment(r.runs, r.cost, r.best, r.score) for r in search.rounds]
        best = search.selection.best(search.tree).number
        return cls(search.setting, select, search.budget.runs, best, why, rows, curve, held_out or {})

    @property
    def start(self) -> CandidateRow:
        return self.rows[0]

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
        """Whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), ensure_ascii=False), encoding="utf-8")
        os.replace(partial, path)

    @classmethod
    def load(cls, path: Path) -> Record:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            told["rows"] = [CandidateRow(**row) for row in told["rows"]]
            told["curve"] = [Moment(**moment) for moment in told["curve"]]
            return cls(**told)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} is no search that can be read: {error}") from None


def records(run: Path) -> dict[str, Record]:
    """The searches of a run folder, by data set."""
    return {path.stem: Record.load(path) for path in sorted((run / FOLDER).glob("*.json"))}
