"""Searches for the web page: the tree of candidates, with cost against score."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from toolwright.failures import UserError
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import ViewAnswer, of_rows
from toolwright.workflow.diagram import as_text
from toolwright.workflow.record import FOLDER, CandidateRow, Record

COLUMNS = ("search", "number", "parent", "edit", "score", "sd", "mean", "runs", "cost", "failure")


def searches(run: OpenRun, query: Query) -> ViewAnswer:
    """Every search of the run; one that cannot be read is left out, with the reason."""
    found, problems = [], []
    folder = run.files.folder(FOLDER)
    for path in sorted(folder.glob("*.json")) if folder is not None else ():
        inside = run.files.file(FOLDER, path.name)
        try:
            if inside is not None:
                found.append(_search(path.stem, Record.load(inside)))
        except (UserError, IndexError) as error:
            problems.append(str(error))
    rows = [{"search": one["name"], **row} for one in found for row in one["candidates"]]
    return of_rows({"searches": found, "unreadable": problems}, COLUMNS, rows)


def _search(name: str, record: Record) -> dict[str, Any]:
    path = {row.number for row in record.path}
    return {
        "name": name,
        "setting": record.setting,
        "select": record.select,
        "budget": record.budget,
        "best": record.best,
        "ended": record.why,
        "held_out": record.held_out,
        "candidates": [_candidate(row, row.number in path) for row in record.rows],
        "curve": [asdict(point) for point in record.curve],
    }


def _candidate(row: CandidateRow, on_path: bool) -> dict[str, Any]:
    try:
        diagram = as_text(row.workflow)
    except (UserError, ValueError, KeyError, TypeError):  # a refused one need not be a workflow
        diagram = ""
    return {**asdict(row), "on_path": on_path, "diagram": diagram}
