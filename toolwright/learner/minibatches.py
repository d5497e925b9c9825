"""Minibatches of one step's trajectories, the same whenever the step is run."""

from __future__ import annotations

import random
from collections.abc import Iterator

from toolwright.batch import Batch


def minibatches(
    batch: Batch, count: int, *, seed: int, step: int, epoch: int, together: int = 1
) -> Iterator[Batch]:
    """`count` parts of nearly equal size in an order of their own for each epoch of each step. Every
    `together` sequences stay side by side."""
    if count == 1:
        yield batch
        return
    units = list(range(len(batch) // together))
    random.Random(f"{seed}/{step}/{epoch}").shuffle(units)
    for part in range(count):
        chosen = units[part * len(units) // count : (part + 1) * len(units) // count]
        if chosen:
            yield batch.select([unit * together + place for unit in chosen for place in range(together)])
