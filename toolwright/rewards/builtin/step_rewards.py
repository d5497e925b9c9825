"""The sum of what environment, tools or agent gave for single steps: a part beside that of the answer."""

from __future__ import annotations

from typing import Any

from toolwright.rewards import SCORERS


@SCORERS.register("step_rewards")
def of_steps(step_rewards: list[float | None]) -> dict[str, Any]:
    given = [reward or 0.0 for reward in step_rewards]
    return {"score": float(sum(given)), "step_rewards": given}
