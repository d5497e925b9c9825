"""The division of a batch's sequences among ranks: by token count, the same on every rank."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from toolwright.batch import partition


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
