"""The order in which tasks are taken, epoch after epoch; a resumed run goes on where it stopped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from toolwright.failures import UserError


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
