"""The differences between the configurations of two runs."""

from __future__ import annotations

from toolwright.ui.query import Query
from toolwright.ui.run_library import RunLibrary
from toolwright.ui.view import VIEWS, ViewAnswer, of_rows


@VIEWS.register("diff")
def diff(library: RunLibrary, query: Query) -> ViewAnswer:
    """`a` and `b` are names of runs; with `all`, equal values are listed too."""
    a, b = (library.get(query.text(name)).config.flat() for name in ("a", "b"))
    keys = list(dict.fromkeys([*a, *b]))
    differing = {key for key in keys if a.get(key) != b.get(key)}  # a setting that is not there has no value
    rows = [
        {"key": key, "a": a.get(key), "b": b.get(key), "differs": key in differing}
        for key in keys
        if key in differing or query.flag("all")
    ]
    data = {
        "a": query.text("a"),
        "b": query.text("b"),
        "same": len(keys) - len(differing),
        "rows": rows,
        "only_a": [key for key in keys if key not in b],
        "only_b": [key for key in keys if key not in a],
    }
    return of_rows(data, ("key", "a", "b", "differs"), rows)
