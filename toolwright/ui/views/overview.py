"""One run at a glance: its settings, what it said, and what went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolwright.failures import ENDED
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.curves import CHARTS
from toolwright.observe.metrics import whole_rows
from toolwright.observe.run_settings import main_settings
from toolwright.observe.summary import ending_error, metric_warnings
from toolwright.ui.query import Query
from toolwright.ui.run_card import card
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer

MOST_LOG = 64 << 10
MOST_INCIDENTS, MOST_FAILURES, MOST_STEPS = 1000, 100, 50


@RUN_VIEWS.register("overview")
def overview(run: OpenRun, query: Query) -> ViewAnswer:
    config, metrics = run.config, run.metrics
    origins, problems = config.origins(), list(run.attempts.problems.values())
    log = run.files.text("log.txt", most=MOST_LOG, tail=True)
    if error := ending_error(log.splitlines()):
        problems.append(f"{ENDED}: {error}")
    return ViewAnswer(
        {
            "summary": card(run),
            "facts": main_settings(config.tree),
            "config": [
                {"key": key, "value": value, "origin": origins.get(key) or None}
                for key, value in config.flat().items()
            ],
            "command": config.command,
            "metrics": metrics.names,
            "charts": _charts(set(metrics.names)),
            "log": log,
            "warnings": metric_warnings(metrics.nonfinite, metrics.points) + problems,
            "incidents": whole_rows(run.files.text("incidents.jsonl", tail=True))[-MOST_INCIDENTS:],
            "failures": failures(run.attempts),
        }
    )


def _charts(names: set[str]) -> list[dict[str, Any]]:
    """The charts of the report that this run has values for."""
    charts = [{**vars(chart), "keys": [pair for pair in chart.keys if pair[0] in names]} for chart in CHARTS]
    return [chart for chart in charts if chart["keys"]]


def failures(table: AttemptTable) -> list[dict[str, Any]]:
    """Attempts that failed, gathered by their message, the commonest first."""
    places = np.flatnonzero(table.numbers.get("failed", np.zeros(0)))
    kinds, messages = table.texts["failure_kind"], table.texts["failure"]
    pairs = kinds.codes[places].astype(np.int64) << 32 | messages.codes[places]
    found = []
    for pair, count in zip(*np.unique(pairs, return_counts=True), strict=True):
        mine = places[pairs == pair]
        steps = np.unique(table.step[mine])[:MOST_STEPS].tolist()
        example = {"step": int(table.step[mine[0]]), "row": int(table.row[mine[0]])}
        about = {"kind": kinds.at(mine[0]), "message": messages.at(mine[0])}
        found.append({**about, "count": int(count), "steps": steps, "example": example})
    return sorted(found, key=lambda one: -int(one["count"]))[:MOST_FAILURES]
