"""Each task by the scorer of its own data source, for files that mix several."""

from __future__ import annotations

from typing import Any

from toolwright.failures import UserError
from toolwright.rewards import SCORERS


@SCORERS.register("data_source")
def by_data_source(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> Any:
    if data_source not in SCORERS.names():
        raise UserError(
            f"no scorer is known for data_source {data_source!r}; set reward.function to path.py:name, "
            f"package.module:name or one of {', '.join(SCORERS.names())}"
        )
    return SCORERS.get(data_source).target(data_source, solution_str, ground_truth, extra_info)
