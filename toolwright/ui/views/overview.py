"""One run at a glance: its settings, what it said, and what went wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson

from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.curves import CHARTS
from toolwright.observe.run_settings import main_settings
from toolwright.ui.query import Query
from toolwright.ui.run_card import card
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer

MOST_LOG = 64 << 10
MOST_INCIDENTS, MOST_FAILURES, MOST_STEPS = 1000, 100, 50


@RUN_VIEWS.register("overview")
def overview(run: OpenRun, query: Query) -> ViewAnswer:
    config, metrics = run.config, run.metrics
    origins = config.origins()
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
            "log": run.files.text("log.txt", most=MOST_LOG, tail=True),
            "warnings": _warnings(run),
            "incidents": incidents(run),
            "failures": failures(run.attempts),
        }
    )


def _charts(names: set[str]) -> list[dict[str, Any]]:
    """The charts of the report that this run has values for."""
    found = []
    for chart in CHARTS:
        keys = [list(pair) for pair in chart.keys if pair[0] in names]
        if keys:
            about = {"title": chart.title, "note": chart.note, "keys": keys}
            found.append({**about, "log": chart.log, "zero": chart.zero, "share": chart.share})
    return found


def _warnings(run: OpenRun) -> list[str]:
    metrics = run.metrics
    found = [
        f"{name} was not finite in {len(steps)} steps, first in step {steps[0]}"
        for name, steps in metrics.nonfinite.items()
    ]
    apart = [step for step, alarm in metrics.points("gap/alarm") if alarm]
    if apart:
        found.append(f"engine and learner were far apart in {len(apart)} steps, first in step {apart[0]}")
    earned = {value for name in ("reward/min", "reward/max") for _, value in metrics.points(name)}
    if len(earned) == 1 and not metrics.points("teacher/kl"):  # a teacher grades tokens, whatever they earn
        found.append(f"all attempts earned {earned.pop():g}: there was nothing to learn from")
    return [*found, *run.attempts.problems.values()]


def incidents(run: OpenRun) -> list[dict[str, Any]]:
    """What died and was survived, as incidents.jsonl has it; a torn line is left out."""
    found = []
    for line in run.files.text("incidents.jsonl", tail=True).split("\n")[-MOST_INCIDENTS:]:
        try:
            row = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


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
