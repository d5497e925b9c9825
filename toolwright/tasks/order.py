"""The order in which tasks are taken: epoch after epoch, or by a curriculum; a resumed run goes on with it.

The curriculum draws a task with weight p (1 − p) + ε, where p is the success that is expected at it: what
always fails, and what never does, teaches nothing (learnability, arXiv 2502.12272). ε keeps all tasks in
view.

    p = (right + K q) / (tried + K)        of the task's own attempts, older ones counting half at each visit
    q = (right + 1) / (tried + 2)          of the attempts at all tasks that were given the same difficulty

So a difficulty that is given with the tasks, `extra_info.difficulty`, tells of tasks that were never tried.
"""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Sequence
from typing import Any

from toolwright.failures import UserError
from toolwright.trajectory import Task


class TaskOrder:
    """Indices below `size`, each once an epoch; an epoch is ordered by the seed and its number alone."""

    order = "epochs"
    adapts = False  # whether it asks how right the attempts at a task were

    def __init__(self, size: int, seed: int, shuffle: bool = True) -> None:
        if size < 1:
            raise UserError("there are no tasks to take: the task set is empty")
        self.size = size
        self.seed = seed
        self.shuffle = shuffle
        self.epoch = 0
        self.position = 0  # how many of this epoch are taken; never `size`, that is 0 of the next
        self._indices = self._arranged()

    def take(self, count: int) -> list[int]:
        """The next `count` indices, from as many epochs as that takes."""
        taken: list[int] = []
        while len(taken) < count:
            part = self._indices[self.position : self.position + count - len(taken)]
            taken += part
            self.position += len(part)
            if self.position == self.size:
                self.epoch += 1
                self.position = 0
                self._indices = self._arranged()
        return taken

    def record(self, index: int, accuracies: Sequence[float]) -> None:
        """Take note of how right the attempts at a task were, if the order adapts to it."""

    def state(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "size": self.size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self.epoch,
            "position": self.position,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which must be of the same tasks."""
        state = {"order": TaskOrder.order, **state}  # version 0.1 had no other
        for key in ("order", "size", "seed", "shuffle"):
            if state[key] != getattr(self, key):
                raise UserError(
                    f"the checkpoint's task order has {key}={state[key]}, this run has "
                    f"{key}={getattr(self, key)}: resume with the same tasks and seed, or start a new run"
                )
        self.epoch = state["epoch"]
        self.position = state["position"]
        self._indices = self._arranged()

    def _arranged(self) -> list[int]:
        indices = list(range(self.size))
        if self.shuffle:
            random.Random(f"order {self.seed} {self.epoch}").shuffle(indices)
        return indices


LEVEL_WEIGHT = 4.0  # K: attempts that what is known of the level counts for
EXPLORE = 0.01  # ε, where p (1 − p) is at most 1/4
TASK_MEMORY, LEVEL_MEMORY = 0.5, 0.95  # what remains of earlier counts at each visit


class Curriculum(TaskOrder):
    """Indices below the number of tasks. A draw follows from the seed, its number and what was recorded."""

    order = "difficulty"
    adapts = True

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        super().__init__(len(tasks), seed)
        self.levels = [json.dumps(task.extra_info.get("difficulty")) for task in tasks]
        self.draws = 0
        self.counts: dict[str, list[float]] = {}  # right and tried, of tasks and of levels

    def take(self, count: int) -> list[int]:
        """`count` indices, no index twice unless there are fewer tasks than that."""
        taken: list[int] = []
        while len(taken) < count:
            rng = random.Random(f"curriculum {self.seed} {self.draws}")
            # Exponential keys: the smallest are a draw without replacement by these weights.
            keys = [-math.log(1.0 - rng.random()) / self._weight(i) for i in range(self.size)]
            taken += heapq.nsmallest(count - len(taken), range(self.size), key=keys.__getitem__)
            self.draws += 1
        return taken

    def success(self, index: int) -> float:
        """The success that is expected of an attempt at this task."""
        right, tried = self.counts.get(f"level {self.levels[index]}", (0.0, 0.0))
        level = (right + 1) / (tried + 2)
        right, tried = self.counts.get(f"task {index}", (0.0, 0.0))
        return (right + LEVEL_WEIGHT * level) / (tried + LEVEL_WEIGHT)

    def record(self, index: int, accuracies: Sequence[float]) -> None:
        right = sum(min(max(accuracy, 0.0), 1.0) for accuracy in accuracies)
        for key, memory in ((f"task {index}", TASK_MEMORY), (f"level {self.levels[index]}", LEVEL_MEMORY)):
            earlier = self.counts.get(key, (0.0, 0.0))
            self.counts[key] = [memory * earlier[0] + right, memory * earlier[1] + len(accuracies)]

    def state(self) -> dict[str, Any]:
        return {**super().state(), "draws": self.draws, "counts": dict(self.counts)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.draws, self.counts = state["draws"], dict(state["counts"])

    def _weight(self, index: int) -> float:
        expected = self.success(index)
        return expected * (1 - expected) + EXPLORE


def task_order(name: str, tasks: Sequence[Task], seed: int) -> TaskOrder:
    """The order that `task.order` names."""
    if name == Curriculum.order:
        return Curriculum(tasks, seed)
    return TaskOrder(len(tasks), seed, shuffle=name == "shuffled")
