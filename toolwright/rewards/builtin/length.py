"""1 for a short attempt, falling to 0 for a long one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from toolwright.failures import UserError
from toolwright.rewards import SCORERS


@SCORERS.register("length")
def length(tokens: int, *, free: Annotated[int, Field(ge=0)] = 0, most: Annotated[int, Field(gt=0)]) -> float:
    """Over the sampled tokens of all turns: 1 up to `free`, 0 from `most` on, a straight line between."""
    if most <= free:
        raise UserError(f"reward.params.length.most={most} must be above reward.params.length.free={free}")
    return min(1.0, max(0.0, (most - tokens) / (most - free)))
