"""The distribution of a number over attempts: length, reward, staleness; over all steps, or for each."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from toolwright.ui.attempt_filter import matching
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_rows

Array = np.ndarray[Any, Any]
FIRST = ("length", "reward", "turns", "tool_calls", "seconds", "staleness")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MOST_STEPS = 200


@RUN_VIEWS.register("distributions")
def distributions(run: OpenRun, query: Query) -> ViewAnswer:
    """`what`: which number. The filters of the table of attempts apply. `by=step`: one histogram a step."""
    table = run.attempts
    others = sorted(name for name in table.numbers if "/" in name)
    available = [*FIRST, *others]
    what = query.choice("what", available, "length")
    places = matching(table, query)
    places = places[np.isfinite(table.numbers[what][places])]
    values, steps = table.numbers[what][places], table.step[places]
    edges = _edges(values, query.whole("bins", 30, most=200, least=1))
    counts = np.histogram(values, edges)[0]
    data: dict[str, Any] = {"what": what, "available": available, "count": len(values)}
    data |= {"edges": edges.tolist(), "counts": counts.tolist(), **_figures(values)}
    parts: list[dict[str, Any]] = [{"counts": counts.tolist()}]
    if query.choice("by", ("", "step"), "") == "step":
        parts = data["by_step"] = _by_step(values, steps, edges)
    rows = [
        {"step": part.get("step"), "from": low, "to": high, "count": count}
        for part in parts
        for (low, high), count in zip(pairwise(edges.tolist()), part["counts"], strict=True)
    ]
    return of_rows(data, ("step", "from", "to", "count"), rows)


def _edges(values: Array, bins: int) -> Array:
    """Whole numbers get bins of a whole width, so that each value falls into the middle of one."""
    if not len(values):
        return np.array([0.0, 1.0])
    low, high = float(values.min()), float(values.max())
    if np.all(values == np.floor(values)) and high - low < 1e9:
        width = max(1, int(np.ceil((high - low + 1) / bins)))
        return np.arange(low, high + width + 0.5, width) - 0.5
    return np.linspace(low, high if high > low else low + 1.0, bins + 1)


def _figures(values: Array) -> dict[str, Any]:
    if not len(values):
        return {"mean": None, "std": None, "quantiles": {}}
    quantiles = {str(q): float(v) for q, v in zip(QUANTILES, np.quantile(values, QUANTILES), strict=True)}
    ends = {"min": float(values.min()), "max": float(values.max())}
    return {"mean": float(values.mean()), "std": float(values.std()), "quantiles": {**quantiles, **ends}}


def _by_step(values: Array, steps: Array, edges: Array) -> list[dict[str, Any]]:
    """A histogram for each step; of a long run, for some steps, evenly spread."""
    known = np.unique(steps)
    if len(known) > MOST_STEPS:
        known = known[np.linspace(0, len(known) - 1, MOST_STEPS).astype(int)]
    found = []
    for step in known:
        mine = values[steps == step]
        about = {"step": int(step), "counts": np.histogram(mine, edges)[0].tolist()}
        found.append({**about, "mean": float(mine.mean()), "median": float(np.median(mine))})
    return found
