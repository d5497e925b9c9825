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

    def together(self, x: Tensor) -> Tensor:
        """[tokens, 1, dim] -> [slots, seen, 1, dim]: as `PackedAttention`, `x` kept in place of keys."""
        return self._written(self.cache.keys[0], x, 1).transpose(1, 2)

    def apart(self, states: Tensor) -> Tensor:
        row = torch.arange(self.count, device=states.device)[:, None]
        return states[row, self.positions].flatten(0, 1)


class DecodeAttention:
    """One new token for each of the first slots; nothing is gathered, idle slots ride along.

    Lives as long as the same sequences are in the same slots: `advance` moves it on by a token.
    """

    def __init__(self, cache: SlotCache, positions: Tensor, moving: Tensor, seen: int) -> None:
        """`positions` [slots] of the tokens to come, of which those that are `moving` go on."""
        layers, _, heads, self.context, dim = cache.keys.shape
        self.rows, self.scale, self.seen = len(positions) * heads, dim**-0.5, seen
        # A row for each slot and key-value head, seen through the cache without a copy.
        shape = (layers, -1, self.context, dim)
        self.keys, self.values = cache.keys.view(shape).unbind(), cache.values.view(shape).unbind()
        self.positions, self.moving = positions, moving
        self.step = moving.repeat_interleave(heads)
        self.position = positions.repeat_interleave(heads)[:, None]
        first = torch.arange(self.rows, device=positions.device) * self.context
        self.place = first + self.position[:, 0]  # where in all the keys of a layer the new one goes
        self.column = torch.arange(self.context, device=positions.device)
        self.hidden = torch.tensor(float("-inf"), dtype=cache.keys.dtype, device=positions.device)
        self.shown = torch.zeros_like(self.hidden)
        self._look()

    def advance(self) -> None:
        self.positions += self.moving
        self.position += self.step[:, None]
        self.place += self.step
        self.seen += 1
        self._look()

    def _look(self) -> None:
        self.bias = torch.where(self.column[: self.seen] > self.position, self.hidden, self.shown)[:, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values, dim = self.keys[layer], self.values[layer], q.shape[2]
        keys.view(-1, dim).index_copy_(0, self.place, k.to(keys.dtype).reshape(-1, dim))
        values.view(-1, dim).index_copy_(0, self.place, v.to(values.dtype).reshape(-1, dim))
        # The query heads that share a key-value head stand where a sequence of queries would. With so few
        # queries plain products are faster than the fused kernel.
        queries = q.to(keys.dtype).reshape(self.rows, -1, dim)
        seen = keys[: self.rows, : self.seen].transpose(1, 2)
        scores = torch.baddbmm(self.bias, queries, seen, alpha=self.scale)
        out = torch.bmm(scores.softmax(-1), values[: self.rows, : self.seen])
        return out.to(q.dtype).view(q.shape)

    def together(self, x: Tensor) -> Tensor:
        """[slots, 1, dim] -> [slots, seen, 1, dim]: as `PackedAttention`, `x` kept in place of keys."""
        keys = self.keys[0]
        keys.view(-1, x.shape[2]).index_copy_(0, self.place, x[:, 0].to(keys.dtype))
        return keys[: self.rows, : self.seen, None]

    def apart(self, states: Tensor) -> Tensor:
        # An idle row may stand beyond what is seen; nobody asks what it says.
        place = self.positions.clamp(max=self.seen - 1)
        return states[torch.arange(len(states), device=states.device), place]
