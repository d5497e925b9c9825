"""Filter and sort attempts as a query asks."""

from __future__ import annotations

from typing import Any

import numpy as np

from toolwright.observe.attempt_index import AttemptTable
from toolwright.ui.problem import PageProblem
from toolwright.ui.query import Query

Array = np.ndarray[Any, Any]
RANGES = ("reward", "length", "turns", "tool_calls", "tool_errors", "seconds", "staleness", "version")
WORDS = ("group", "task", "stop", "source")


def matching(table: AttemptTable, query: Query) -> Array:
    """The places of the attempts that the query's filters let through, in order of step and row."""
    keep = np.ones(len(table), bool)
    steps = query.steps()
    if steps is not None:
        keep &= np.logical_or.reduce([(table.step >= low) & (table.step <= high) for low, high in steps])
    for name in WORDS:
        if query.text(name):
            column = table.texts[name]
            exact = column.words.find(query.text(name))
            words = [exact] if exact >= 0 else [column.words.find(word) for word in query.listed(name)]
            keep &= np.isin(column.codes, words)
    for name in RANGES:
        low, high = query.number(f"{name}_min"), query.number(f"{name}_max")
        if low is not None:
            keep &= table.numbers[name] >= low
        if high is not None:
            keep &= table.numbers[name] <= high
    failed = query.flag("failed")
    if failed is not None:
        keep &= (table.numbers["failed"] > 0) == failed
    return np.flatnonzero(keep)


def sorted_places(table: AttemptTable, places: Array, query: Query) -> Array:
    """Sort places as the query asks, by default the newest step first. Places without a value come last."""
    name = query.text("sort") or "step"
    descending = query.choice("order", ("asc", "desc"), "desc" if name == "step" else "asc") == "desc"
    keys = table.sort_keys(name)
    if keys is None:
        known = ", ".join(["step", "row", *table.texts, *table.numbers])
        raise PageProblem(400, f"attempts cannot be sorted by {name[:100]!r}; known: {known}")
    # NaN sorts last, also behind a minus.
    return places[np.argsort(-keys[places] if descending else keys[places], kind="stable")]
