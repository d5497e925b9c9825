"""A view: what the page asks for by one address. Each is a function in a module of `toolwright.ui.views`.

A view of one run is called with the run and the query, any other with all runs and the query:

    @RUN_VIEWS.register("rewards")
    def rewards(run: OpenRun, query: Query) -> ViewAnswer:
        return ViewAnswer({"rewards": run.metrics.column("reward/mean")})

answers `/api/runs/RUN/rewards`. `rewards/item` is asked for if something follows, as in `rewards/3/17`, which
is then `query.path`. A plugin names its views at the places `toolwright.ui.run_views` and
`toolwright.ui.views`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from toolwright.registry import Registry
from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun, RunLibrary

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute a text that begins so


@dataclass(frozen=True)
class ViewAnswer:
    """JSON for the page, and the same as a table to download, where there is one."""

    data: Mapping[str, Any]
    names: Sequence[str] = ()
    rows: Iterable[Sequence[Any]] = ()

    def as_csv(self) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(self.names)
        writer.writerows([_cell(value) for value in row] for row in self.rows)
        return text.getvalue().encode("utf-8", "replace")


def of_rows(data: Mapping[str, Any], names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> ViewAnswer:
    return ViewAnswer(data, names, ([row.get(name) for name in names] for row in rows))


def of_columns(data: Mapping[str, Any], columns: Mapping[str, Sequence[Any]]) -> ViewAnswer:
    return ViewAnswer(data, list(columns), zip(*columns.values(), strict=True))


def as_json(data: Any) -> bytes:
    try:
        return orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:  # half a surrogate pair, which UTF-8 cannot express and JSON can escape
        return json.dumps(data, default=str).encode()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


RUN_VIEWS: Registry[Callable[[OpenRun, Query], ViewAnswer]] = Registry(
    "view of a run", "toolwright.ui.views", plugins="toolwright.ui.run_views"
)
VIEWS: Registry[Callable[[RunLibrary, Query], ViewAnswer]] = Registry("view", "toolwright.ui.views")
