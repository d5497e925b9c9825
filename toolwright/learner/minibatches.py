"""The division of a step: trajectories into minibatches, and those among ranks; the same in every process."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence

from toolwright.batch import Batch, partition


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


def shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Rows of each rank, nearly equal in tokens: the longest first, each to whoever has least so far."""
    given: list[list[int]] = [[] for _ in range(ranks)]
    load = [(0, rank) for rank in range(ranks)]
    for row in sorted(range(len(lengths)), key=lambda r: (-lengths[r], r)):
        tokens, rank = heapq.heappop(load)
        given[rank].append(row)
        heapq.heappush(load, (tokens + lengths[row], rank))
    return given


def plan(
    lengths: Sequence[int], ranks: int, token_budget: int, *, padded: bool = True
) -> list[list[list[int]]]:
    """Rows of each micro-batch of each rank. Every rank has as many, since their collectives must match:
    one that has fewer of its own gets empty ones."""
    planned = []
    for rows in shares(lengths, ranks):
        bins = partition([lengths[row] for row in rows], token_budget, padded=padded)
        planned.append([[rows[i] for i in members] for members in bins])
    most = max(len(bins) for bins in planned)
    return [bins + [[]] * (most - len(bins)) for bins in planned]
