"""1 for few calls without errors; each further call and each error costs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.rewards import SCORERS

Cost = Annotated[float, Field(ge=0)]


@SCORERS.register("tool_efficiency")
def tool_efficiency(
    counts: dict[str, float],
    *,
    free_calls: Annotated[int, Field(ge=0)] = 1,
    call_cost: Cost = 0.1,
    error_cost: Cost = 0.25,
) -> float:
    """1 − call_cost · (calls above free_calls) − error_cost · (errors and malformed calls), not below 0."""
    calls = max(0.0, counts.get("tool_calls", 0) - free_calls)
    errors = counts.get("tool_errors", 0) + counts.get("format_faults", 0)
    return max(0.0, 1.0 - call_cost * calls - error_cost * errors)
