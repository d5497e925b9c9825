"""Minibatches of one step's trajectories, the same whenever the step is run."""

from __future__ import annotations

import random
from collections.abc import Iterator

from toolwright.batch import Batch


def minibatches(batch: Batch, count: int, *, seed: int, step: int, epoch: int) -> Iterator[Batch]:
    """`count` parts of nearly equal size in an order of their own for each epoch of each step."""
    if count == 1:
        yield batch
        return
    rows = list(range(len(batch)))
    random.Random(f"{seed}/{step}/{epoch}").shuffle(rows)
    for part in range(count):
        chosen = rows[part * len(rows) // count : (part + 1) * len(rows) // count]
        if chosen:
            yield batch.select(chosen)
