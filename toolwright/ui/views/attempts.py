"""The table of attempts: sorted, filtered, searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.text_search import FoundTexts, search
from toolwright.ui.attempt_filter import matching, sorted_places
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_rows

Array = np.ndarray[Any, Any]
TEXTS = ("group", "task", "source", "question", "stop", "failure")
NUMBERS = ("reward", "seconds")
WHOLE = ("index", "length", "turns", "tool_calls", "tool_errors", "version", "staleness")
COLUMNS = (
    *("step", "row", "group", "index", "task", "source", "question", "reward", "length", "turns"),
    *("tool_calls", "tool_errors", "stop", "failed", "failure", "seconds", "version", "staleness"),
)
SEARCH_S = 2.0
LONGEST_SEARCH = 1000  # characters


@RUN_VIEWS.register("attempts")
def attempts(run: OpenRun, query: Query) -> ViewAnswer:
    """`q` searches prompts and answers for up to two seconds; `q_from` goes on from there."""
    table = run.attempts
    places = matching(table, query)
    text = query.text("q")[:LONGEST_SEARCH]
    looked = FoundTexts(searched=len(places))
    if text:
        places = places[np.argsort(-table.step[places], kind="stable")]  # the newest are what one looks for
        skip = query.whole("q_from", 0, most=len(places))
        looked = search(table, places, text, skip=skip, limit_s=SEARCH_S)
        places = np.array(looked.places, np.int64)
    places = sorted_places(table, places, query)
    offset, limit = query.page()
    shown = places[offset : offset + limit]
    rows = attempt_rows(table, shown)
    if text:
        for row, place in zip(rows, shown.tolist(), strict=True):
            row["snippet"] = looked.snippets.get(place, "")
    data = {
        "total": len(table),
        "matched": len(places),
        "offset": offset,
        "complete": looked.complete,
        "searched": looked.searched,
        "columns": COLUMNS,
        "rows": rows,
        "facets": facets(table, places),
        "unreadable": table.problems,
    }
    whole = attempt_rows(table, places) if query.text("format") == "csv" else []
    return of_rows(data, COLUMNS, whole)


def attempt_rows(table: AttemptTable, places: Array) -> list[dict[str, Any]]:
    """The small columns of these attempts."""
    columns: dict[str, Sequence[Any]] = {
        "step": table.step[places].tolist(),
        "row": table.row[places].tolist(),
        "failed": (table.numbers["failed"][places] > 0).tolist(),
    }
    for name in TEXTS:
        columns[name] = table.texts[name].of(places)
    for name in NUMBERS:
        columns[name] = numbers(table.numbers[name][places])
    for name in WHOLE:
        found = numbers(table.numbers[name][places])
        columns[name] = [None if value is None else int(value) for value in found]
    ordered = [columns[name] for name in COLUMNS]
    return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*ordered, strict=True)]


def numbers(values: Array) -> list[float | None]:
    """Values as JSON has them: what is not finite is none."""
    return [value if value - value == 0 else None for value in values.tolist()]


def facets(table: AttemptTable, places: Array) -> Mapping[str, Any]:
    """Count these attempts by stop reason, source and failure."""
    found: dict[str, Any] = {name: _counts(table, name, places) for name in ("stop", "source")}
    failed = int(table.numbers["failed"][places].sum())
    return {**found, "failed": {"true": failed, "false": len(places) - failed}, "steps": table.steps}


def _counts(table: AttemptTable, name: str, places: Array) -> dict[str, int]:
    column = table.texts[name]
    counts = np.bincount(column.codes[places], minlength=len(column.words.all))
    order = np.argsort(-counts, kind="stable")[:50]
    return {column.words.all[code]: int(counts[code]) for code in order if counts[code]}
