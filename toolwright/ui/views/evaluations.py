"""Held-out results, with how sure they are; and those of two runs task by task."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import asdict, fields
from typing import Any

from toolwright.observe.estimates import PairedDifference, wilson
from toolwright.observe.evaluation import FILE, EvaluationResult, differences, read_evaluations
from toolwright.ui.metrics_table import MetricsTable
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun, RunLibrary
from toolwright.ui.view import RUN_VIEWS, VIEWS, ViewAnswer, of_rows

PREFIX = "held_out/"
INTERVAL = "95 % interval over tasks"
FIRST = ("accuracy", "low", "high", "reward", "attempts", "failed", "truncated", "tokens_mean")


@RUN_VIEWS.register("evaluations")
def evaluations(run: OpenRun, query: Query) -> ViewAnswer:
    rows = evaluated(run.metrics)
    data = {"measure": _measure(rows), "interval": INTERVAL, "rows": rows}
    return of_rows(data, _names(rows), rows)


@VIEWS.register("evaluations")
def all_evaluations(library: RunLibrary, query: Query) -> ViewAnswer:
    """The last and the best evaluation of each run."""
    found = []
    for run in library.all():
        rows = evaluated(run.metrics)
        if rows:
            measure = _measure(rows)
            best = max(rows, key=lambda row: row.get(measure) or -math.inf)
            found.append({"run": run.name, "which": "last", "measure": measure, **rows[-1]})
            found.append({"run": run.name, "which": "best", "measure": measure, **best})
    return of_rows({"interval": INTERVAL, "rows": found}, ["run", "which", *_names(found)], found)


@VIEWS.register("paired")
def paired_runs(library: RunLibrary, query: Query) -> ViewAnswer:
    """The last evaluations of runs `a` and `b`, task by task: `b` less `a`."""
    a, b = (_last(library.get(query.text(name))) for name in ("a", "b"))
    found = differences(a, b) if a and b else {}
    rows = [
        {"source": source, "measure": name, **asdict(one)}
        for source, measures in found.items()
        for name, one in measures.items()
    ]
    names = ["source", "measure", *(field.name for field in fields(PairedDifference))]
    return of_rows({"a": query.text("a"), "b": query.text("b"), "rows": rows}, names, rows)


def _last(run: OpenRun) -> EvaluationResult | None:
    file = run.files.file(FILE)
    found = read_evaluations(file.parent) if file is not None else {}
    return found[max(found)] if found else None


def evaluated(metrics: MetricsTable) -> list[dict[str, Any]]:
    """One row for each step that was evaluated. The interval is of the share of right answers."""
    names = [name for name in metrics.names if name.startswith(PREFIX)]
    steps: dict[int, dict[str, Any]] = {}
    for name in names:
        for step, value in metrics.points(name):
            steps.setdefault(step, {"step": step})[name.removeprefix(PREFIX)] = value
    for row in steps.values():
        row["low"], row["high"] = interval(row)
    return [steps[step] for step in sorted(steps)]


def interval(row: MutableMapping[str, Any]) -> tuple[float | None, float | None]:
    """The interval that the evaluation gave; Wilson's over its attempts if an earlier version made it."""
    if "accuracy_low" in row and "accuracy_high" in row:
        return row.pop("accuracy_low"), row.pop("accuracy_high")
    share, count = row.get("accuracy"), row.get("attempts")
    if share is None or not count or not 0 <= share <= 1:
        return None, None
    return wilson(share, count)


def _measure(rows: list[dict[str, Any]]) -> str:
    known = {name for row in rows for name in row} - {"step", "low", "high"}
    return next((name for name in ("accuracy", "reward", *sorted(known)) if name in known), "")


def _names(rows: list[dict[str, Any]]) -> list[str]:
    known = {name for row in rows for name in row} - {"step", "run", "which"}
    return ["step", *(n for n in FIRST if n in known), *sorted(known.difference(FIRST))]
