"""Episodes of any Gymnasium environment, one a seed."""

from __future__ import annotations

import random
import string
from dataclasses import replace
from typing import Any

from toolwright.tasks import TASKS, TaskSet
from toolwright.tasks.worlds import task_set


@TASKS.register("gymnasium")
def gymnasium(
    *,
    seed: int,
    train_size: int | None,
    held_out_size: int,
    id: str = "FrozenLake-v1",
    kwargs: dict[str, Any] | None = None,
    actions: list[str] | None = None,
    template: str = "{observation}",
    render: bool = False,
    success_reward: float | None = None,
    instructions: str = "",
    action_tag: str | None = None,
) -> TaskSet:
    """`id` and `kwargs` as `gymnasium.make` takes them; the rest is told by the environment of this name."""
    settings = {
        "id": id,
        "kwargs": kwargs or {},
        "actions": actions or [],
        "template": template,
        "render": render,
        "success_reward": success_reward,
    }

    def level(rng: random.Random) -> dict[str, Any]:
        return {**settings, "seed": rng.randrange(2**31)}

    tasks = task_set(
        "gymnasium",
        level,
        seed=seed,
        train_size=train_size,
        held_out_size=held_out_size,
        instructions=instructions,
        action_tag=action_tag,
        noise=0.0,
        alphabet=string.printable,
    )
    return replace(tasks, demonstrate=None)  # nobody knows the shortest way through any environment
