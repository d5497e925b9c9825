"""Recorded tables: what a model scored by workflow, task and repeat. Searches are replayed on them."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

from toolwright.failures import UserError
from toolwright.workflow.evaluate import WorkflowOutcome
from toolwright.workflow.pool import Payment
from toolwright.workflow.program import Workflow
from toolwright.workflow.tree import Run

Split = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = ("validation", "test")
WHOLE = 0.99  # of the tasks that a workflow has to have run on
Cells = Sequence[Sequence[Sequence[float]]]  # [workflow, repeat, task]


@dataclass(frozen=True)
class RecordedTable:
    """Workflows × repeats × tasks of one data set with one model. No cell is missing."""

    name: str  # of the data set
    setting: str  # all that a score depends on
    kind: str
    operators: Sequence[str]  # that edits may use
    prompts: Mapping[str, str]
    tasks: Mapping[str, Sequence[str]]  # ids by split
    workflows: Sequence[Mapping[str, Any]]  # as JSON
    scores: Cells
    costs: Cells  # dollars
    calls: Cells

    @property
    def repeats(self) -> int:
        return len(self.scores[0])

    @cached_property
    def columns(self) -> dict[str, int]:
        return {task: column for column, task in enumerate(t for split in SPLITS for t in self.tasks[split])}

    @cached_property
    def programs(self) -> dict[str, Workflow]:
        """The workflows by fingerprint."""
        made = (Workflow.from_json(dict(program)) for program in self.workflows)
        return {workflow.fingerprint: workflow for workflow in made}

    @cached_property
    def rows(self) -> dict[str, int]:
        return {fingerprint: row for row, fingerprint in enumerate(self.programs)}

    def outcome(self, workflow: Workflow, task: str, repeat: int) -> WorkflowOutcome:
        """What the workflow scored there. One that was not recorded fails."""
        row, column = self.rows.get(workflow.fingerprint), self.columns[task]
        if row is None or repeat >= self.repeats:
            return WorkflowOutcome(task, 0.0, failure="the table has no such run", blame="workflow")
        cells = (cells[row][repeat][column] for cells in (self.scores, self.costs, self.calls))
        score, cost, calls = cells
        return WorkflowOutcome(task, score, cost, int(calls))

    @classmethod
    def of(
        cls,
        runs: Sequence[tuple[Workflow, Mapping[Run, Payment]]],
        *,
        tasks: Mapping[str, Sequence[str]],
        **about: Any,
    ) -> RecordedTable | None:
        """The table of all workflows that ran on every task, with the repeats that all of them have. A task
        that some lost to infrastructure is left out, if it is one of few. None: no workflow is whole."""
        every = [task for split in SPLITS for task in tasks[split]]
        runs = [(w, made) for w, made in runs if sum((t, 0) in made for t in every) >= WHOLE * len(every)]
        lost = {task for task in every if any((task, 0) not in made for _, made in runs)}
        tasks = {split: [task for task in tasks[split] if task not in lost] for split in SPLITS}
        every = [task for task in every if task not in lost]
        if not runs or not every:
            return None
        repeats = min(next(n for n in count() if any((t, n) not in made for t in every)) for _, made in runs)

        def cells(what: str, digits: int) -> Cells:
            return [
                [[round(getattr(made[task, n], what), digits) for task in every] for n in range(repeats)]
                for _, made in runs
            ]

        return cls(
            tasks=tasks,
            workflows=[workflow.to_json() for workflow, _ in runs],
            scores=cells("score", 4),
            costs=cells("cost", 7),
            calls=cells("calls", 0),
            **about,
        )


def save_tables(tables: Iterable[RecordedTable], path: Path) -> None:
    """Write tables as compressed lines of JSON, one for each data set."""
    partial = path.with_name(f"{path.name}.partial")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=9) as file:
        for table in tables:
            file.write(json.dumps(asdict(table), ensure_ascii=False, separators=(",", ":")) + "\n")
    os.replace(partial, path)


def load_tables(path: Path) -> dict[str, RecordedTable]:
    """Read the tables of a file, by data set."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            tables = [RecordedTable(**json.loads(line)) for line in file]
    except (OSError, EOFError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{path} holds no recorded tables: {why}") from None
    return {table.name: table for table in tables}


@lru_cache(maxsize=8)
def load_tables_once(path: str) -> dict[str, RecordedTable]:
    """`load_tables` for a file that no longer changes."""
    return load_tables(Path(path))
