"""The native engine's key-value cache: fixed slots, refilled as sequences end, kept while a tool runs."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from toolwright.models.attention import attend, repeat_heads, working_type
from toolwright.models.decoder import Shape


@dataclass(frozen=True)
class Parked:
    """The cache of an attempt between two of its turns."""

    slot: int
    tokens: list[int]  # whose keys and values the slot holds


class SlotCache:
    """Keys and values of `slots` sequences. A slot is free, in use, or parked for its attempt's next turn."""

    def __init__(
        self, shape: Shape, slots: int, *, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`rows` of memory, of which the first `slots` are given out."""
        # Kept in the type that attention works in, so that nothing is converted at each step.
        dtype = working_type(dtype, device)
        size = (shape.layers, rows, shape.kv_heads, shape.context, shape.head_dim)
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self.slots = slots
        self.free = list(range(slots))  # a heap: the lowest slot first, so that those in use stay together
        self.parked: OrderedDict[str, Parked] = OrderedDict()

    def take(self, attempt: str, prompt: Sequence[int]) -> tuple[int, int] | None:
        """A slot for this prompt and how many of its tokens are there already; None if all are in use."""
        parked = self.parked.pop(attempt, None)
        if parked is not None:
            return parked.slot, _common(parked.tokens, prompt, limit=len(prompt) - 1)
        if not self.free and self.parked:
            self.release(next(iter(self.parked)))  # whoever has waited longest computes its prefix again
        return (self.lowest(), 0) if self.free else None

    def lowest(self) -> int:
        return heapq.heappop(self.free)

    def park(self, slot: int, attempt: str, tokens: list[int]) -> None:
        self.release(attempt)  # an attempt that took two turns at once keeps the later
        self.parked[attempt] = Parked(slot, tokens)

    def give_back(self, slot: int) -> None:
        heapq.heappush(self.free, slot)

    def release(self, attempt: str) -> None:
        parked = self.parked.pop(attempt, None)
        if parked is not None:
            self.give_back(parked.slot)

    def forget(self) -> None:
        """Drop everything that is parked: the weights it was computed with are gone."""
        for attempt in list(self.parked):
            self.release(attempt)

    def clear(self) -> None:
        """Every slot is free, whoever held it."""
        self.parked.clear()
        self.free = list(range(self.slots))

    def copy(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]


def _common(old: Sequence[int], new: Sequence[int], *, limit: int) -> int:
    limit = min(limit, len(old))
    if list(old[:limit]) == list(new[:limit]):
        return limit
    return next(i for i in range(limit) if old[i] != new[i])


class ExtendAttention:
    """Several new tokens for each of some slots: a prompt, or what a tool answered."""

    def __init__(self, cache: SlotCache, slots: Tensor, positions: Tensor) -> None:
        self.cache, self.slots = cache, slots
        self.count, self.width = positions.shape
        last = cache.keys.shape[3] - 1
        self.positions = positions.clamp(max=last)  # padding may run past the end; nobody reads it there
        self.seen = int(self.positions.max()) + 1
        self.mask = torch.arange(self.seen, device=positions.device) <= self.positions[:, None, :, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = q.view(self.count, self.width, *q.shape[1:]).transpose(1, 2)
        keys = self._written(self.cache.keys[layer], k, queries.shape[1])
        values = self._written(self.cache.values[layer], v, queries.shape[1])
        return attend(queries, keys, values, mask=self.mask).transpose(1, 2).flatten(0, 1)

    def _written(self, store: Tensor, fresh: Tensor, heads: int) -> Tensor:
        """Keep the new ones; return all that the slots hold, old and new."""
        store[self.slots[:, None], :, self.positions] = fresh.view(
            self.count, self.width, *fresh.shape[1:]
        ).to(store.dtype)
        return repeat_heads(store[self.slots, :, : self.seen], heads)


class DecodeAttention:
    """One new token for each of the first `count` slots; nothing is gathered, idle slots ride along."""

    def __init__(self, cache: SlotCache, positions: Tensor, seen: int) -> None:
        layers, _, heads, context, dim = cache.keys.shape
        self.count, self.scale = len(positions) * heads, dim**-0.5
        # A row for each slot and key-value head, seen through the cache without a copy.
        shape = (layers, -1, context, dim)
        self.keys, self.values = cache.keys.view(shape), cache.values.view(shape)
        self.seen_keys = self.keys[:, : self.count, :seen].transpose(2, 3)
        self.seen_values = self.values[:, : self.count, :seen]
        positions = positions.repeat_interleave(heads)
        self.place = (torch.arange(self.count, device=positions.device), positions)
        hidden = torch.arange(seen, device=positions.device) > positions[:, None]
        self.bias = torch.zeros(hidden.shape, dtype=cache.keys.dtype, device=positions.device)
        self.bias = self.bias.masked_fill_(hidden, float("-inf"))[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype, dim = self.keys.dtype, q.shape[2]
        self.keys[layer][self.place] = k.to(dtype).reshape(-1, dim)
        self.values[layer][self.place] = v.to(dtype).reshape(-1, dim)
        # The query heads that share a key-value head stand where a sequence of queries would. With so few
        # queries plain products are faster than the fused kernel.
        queries = q.to(dtype).reshape(self.count, -1, dim)
        scores = torch.baddbmm(self.bias, queries, self.seen_keys[layer], alpha=self.scale)
        out = torch.bmm(scores.softmax(-1), self.seen_values[layer])
        return out.to(q.dtype).view(q.shape)
