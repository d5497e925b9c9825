"""What an environment gave along the way, summed; `acc` says whether its goal was reached."""

from __future__ import annotations

from toolwright.rewards import SCORERS
from toolwright.trajectory import Trajectory


@SCORERS.register("environment")
def environment(solution_str: str, trajectory: Trajectory) -> dict[str, float]:
    rewards = [step.reward or 0.0 for step in trajectory.steps]
    return {"score": sum(rewards), "acc": trajectory.counts.get("success", 0.0)}
