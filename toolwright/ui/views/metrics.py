"""Metrics as columns over three axes: step, seconds of training, tokens sampled."""

from __future__ import annotations

from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_columns


@RUN_VIEWS.register("metrics")
def metrics(run: OpenRun, query: Query) -> ViewAnswer:
    """`names`: only these metrics. `since`: how many rows the page has; all are sent if the run went back to
    a checkpoint."""
    table = run.metrics
    wanted = query.listed("names") or table.names
    since = query.whole("since", 0, most=1 << 40)
    since = since if since <= table.rows else 0
    columns = table.columns(wanted, since)
    names = [name for name in wanted if name in columns]
    rows = since + len(columns["step"])
    data = {"run": run.name, "from": since, "rows": rows, "names": names, "columns": columns}
    return of_columns(data, columns)
