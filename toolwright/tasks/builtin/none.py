"""No tasks: `sft` learns from a file, and there is nothing to attempt before and after."""

from __future__ import annotations

from toolwright.tasks import TASKS, TaskSet


@TASKS.register("none")
def none() -> TaskSet:
    """No tasks at all."""
    return TaskSet([], scorer="environment")  # nobody asks it
