"""The load of the machine: cores and GPUs by stage, time by stage, deaths, throughput, sandbox, cache."""

from __future__ import annotations

import re
from typing import Any

from toolwright.ui.query import Query
from toolwright.ui.run_library import OpenRun
from toolwright.ui.view import RUN_VIEWS, ViewAnswer, of_columns

_UNIT = re.compile("_(cores|gpu|calls)$|(?<!per)_s$")
PREFIXES = ("use/", "time/", "runtime/", "throughput/")
# Title, prefix, endings, and whether the curves add up to a whole.
CHARTS = (
    ("Cores in use", "use/", ("_cores",), False),
    ("GPU use", "use/", ("_gpu",), False),
    ("Seconds by stage", "time/", ("_s",), True),
    ("Throughput", "throughput/", ("",), False),
    ("Deaths and attempts sampled again", "runtime/", ("",), False),
    ("Tool calls under way at once", "use/", ("_calls",), False),
    ("Sandbox: runs at work and in its queue", "use/sandbox_", ("runs", "queue"), False),
    ("Sandbox: seconds that runs waited", "use/sandbox_", ("waited_s",), False),
    ("Sandbox: runs that it ended", "use/sandbox_", ("kills",), False),
    ("Engine's cache: the part in use at most", "use/", ("cache",), False),
    ("Engine's cache: tokens held, and saved by sharing", "use/cache_", ("tokens",), False),
    ("Engine's cache: turns suspended for lack of room", "use/cache_", ("suspended",), False),
)


@RUN_VIEWS.register("load")
def load(run: OpenRun, query: Query) -> ViewAnswer:
    names = [name for name in run.metrics.names if name.startswith(PREFIXES)]
    columns = run.metrics.columns(names)
    charts: list[dict[str, Any]] = []
    for title, prefix, endings, stacked in CHARTS:
        keys = [
            [name, _UNIT.sub("", name.removeprefix(prefix)).replace("_", " ")]
            for name in names
            if name.startswith(prefix) and name.endswith(endings) and not (stacked and name == "time/total_s")
        ]
        if keys:
            charts.append({"title": title, "keys": keys, "stacked": stacked})
    return of_columns({"columns": columns, "charts": charts}, columns)
