"""The reward of the environment: the sum over the steps, and whether the goal was reached."""

from __future__ import annotations

from typing import Any

from toolwright.failures import TaskFailure
from toolwright.rewards import SCORERS
from toolwright.trajectory import OUTCOME


@SCORERS.register("environment")
def environment(
    step_rewards: list[float | None],
    counts: dict[str, float],
    turns: list[str],
    *,
    success_only: bool = False,
) -> dict[str, Any]:
    """`acc` is `counts["success"]` if the loop counts it, otherwise whether the sum reaches 1.

    `success_only`: the score is `acc`, whatever the steps gave. What else the environment says is a part.
    """
    rewards = [reward for reward in step_rewards if reward is not None]
    if turns and not rewards and "success" not in counts:
        raise TaskFailure(
            "no step of this attempt has a reward. Scorer 'environment' is for agents that act in one: "
            "set reward.function to another scorer, or rollout.agent to another agent"
        )
    total = float(sum(rewards))
    success = float(counts.get("success", total >= 1.0 - 1e-6) > 0)
    parts = {name.removeprefix(OUTCOME): value for name, value in counts.items() if name.startswith(OUTCOME)}
    if success_only:
        return {**parts, "score": success, "acc": success}
    steps = [reward or 0.0 for reward in step_rewards]
    return {**parts, "score": total, "acc": success, "step_rewards": steps}
