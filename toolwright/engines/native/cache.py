"""The native engine's cache in main memory: fixed slots, refilled as sequences end, kept while a tool runs.

There the system gives memory only to what is written, so that slots of the whole context cost nothing, and
products want a sequence's keys in one piece. On a GPU the cache is in pages: `paged_cache.py`.
"""

from __future__ import annotations

import heapq
import math
import mmap
import sys
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.models.attention import aligned, attended, in_order, ordered, repeat_heads
from toolwright.models.decoder import Shape
from toolwright.models.products import BatchedProduct, fixed

# MAP_NORESERVE, which Python knows only from 3.13 on: more may be mapped than there is, as not all is used.
UNRESERVED = 0x4000 if sys.platform == "linux" else 0
MOST_RUNS = 3  # written one by one; more of them take longer than all slots at once, each at its place


def zeros(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros. In main memory, pages are taken only when written to, as few slots are ever full."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | UNRESERVED
    pages = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=kind)
    return torch.frombuffer(pages, dtype=dtype).view(size)


class Place(NamedTuple):
    """The place of a sequence in the cache, and how much of it is there already."""

    slot: int
    cached: int  # tokens
    room: int  # tokens that it has memory for
    kept: bool = False  # from its attempt's turn before
    waits_for: int | None = None  # a page of its opening that another sequence has yet to compute


@dataclass(frozen=True)
class Parked:
    """The cache of an attempt between two of its turns."""

    slot: int
    tokens: list[int]  # whose keys and values the slot holds


class LayerCache(NamedTuple):
    """The first slots' share of a layer, with the keys as columns: to write to, and as matrices to read."""

    keys: Tensor  # [slots, kv_heads, dim, room]
    values: Tensor  # [slots, kv_heads, room, dim]
    all_keys: Tensor  # [slots × kv_heads, dim, room]
    all_values: Tensor


class SlotCache:
    """Keys and values of `slots` sequences. A slot is free, in use, or parked for its attempt's next turn."""

    def __init__(self, shape: Shape, slots: int, *, dtype: torch.dtype, device: torch.device) -> None:
        room = aligned(shape.context)
        size = (shape.layers, slots, shape.kv_heads, room, shape.head_dim)
        self.values, self.keys = (zeros(size, dtype, device) for _ in range(2))
        if ordered(self.keys):  # there a product of few queries wants each number of all keys side by side
            self.keys = self.keys.view(*size[:3], shape.head_dim, room).transpose(3, 4)
        self.slots, self.context = slots, shape.context
        self._layers: dict[int, list[LayerCache]] = {}
        self.unread: set[int] = set()  # pages that sequences wait for; there are none
        self.free = list(range(slots))  # a heap: the lowest slot first, so that those in use stay together
        self.parked: OrderedDict[str, Parked] = OrderedDict()

    @property
    def has_slot(self) -> bool:
        return bool(self.free or self.parked)

    def take(
        self,
        attempt: str,
        tokens: Sequence[int],
        *,
        leader: int | None = None,
        shares: bool = True,
        spare: int = 0,
    ) -> Place | None:
        """A slot for these tokens; None if all are in use. What others hold is copied, see `copy_opening`.
        `shares`: the tokens tell all of the prompt, which has no images."""
        parked = self.parked.pop(attempt, None)
        if parked is not None:
            cached = common(parked.tokens, tokens, limit=len(tokens) - 1)
            if not shares and cached < len(parked.tokens):
                cached = 0  # never a part of an image
            return Place(parked.slot, cached, self.context, kept=True)
        if not self.free and self.parked:
            self.release(next(iter(self.parked)))  # whoever has waited longest computes its prefix again
        return Place(self.lowest(), 0, self.context) if self.free else None

    def lowest(self) -> int:
        return heapq.heappop(self.free)

    def read(self, slot: int, start: int, end: int) -> None:
        """Nobody waits for what another sequence reads."""

    def park(self, slot: int, attempt: str, tokens: list[int], *, shares: bool = True) -> None:
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

    def layers(self, slots: int) -> list[LayerCache]:
        """Views of the first `slots`, made once."""
        if slots not in self._layers:
            pairs = [
                (k[:slots].transpose(2, 3), v[:slots]) for k, v in zip(self.keys, self.values, strict=True)
            ]
            self._layers[slots] = [LayerCache(k, v, k.flatten(0, 1), v.flatten(0, 1)) for k, v in pairs]
        return self._layers[slots]

    def resting(self) -> list[tuple[int, int]]:
        """Slots that are parked, and how many tokens each holds."""
        return [(parked.slot, len(parked.tokens)) for parked in self.parked.values()]

    def move(self, slot: int, target: int, length: int) -> None:
        """The first tokens of a slot, to another one that was taken."""
        self._copy(slot, target, length)
        self.give_back(slot)

    def copy_opening(self, pairs: Sequence[tuple[int, int, int]]) -> None:
        """Copy the first tokens of one slot to another, for each (from, to, tokens)."""
        for source, target, length in pairs:
            self._copy(source, target, length)

    def _copy(self, source: int, target: int, length: int) -> None:
        self.keys[:, target, :, :length] = self.keys[:, source, :, :length]
        self.values[:, target, :, :length] = self.values[:, source, :, :length]

    def extending(self, slots: Sequence[int], positions: Tensor) -> SlotAttention:
        return SlotAttention(self, slots, positions)

    def decoding(self, positions: Tensor, moving: Tensor, seen: int) -> DecodeAttention:
        return DecodeAttention(self, positions, moving, seen)


def common(old: Sequence[int], new: Sequence[int], *, limit: int) -> int:
    limit = min(limit, len(old))
    if list(old[:limit]) == list(new[:limit]):
        return limit
    return next(i for i in range(limit) if old[i] != new[i])


class ExtendAttention:
    """Several new tokens for each of some slots: a prompt, or what a tool answered."""

    def __init__(self, cache: Any, positions: Tensor) -> None:
        self.cache = cache
        self.count, self.width = positions.shape
        # Padding may run past the end; nobody reads it there.
        self.positions = positions.clamp(max=cache.context - 1)
        self.last = int(self.positions.max()) + 1
        self.seen = aligned(self.last)
        self.mask = torch.arange(self.seen, device=positions.device) <= self.positions[:, None, :, None]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        queries = q.view(self.count, self.width, *q.shape[1:]).transpose(1, 2)
        keys, values = self._written(self.cache.keys[layer], k), self._written(self.cache.values[layer], v)
        if ordered(q):
            out = in_order(queries, keys.transpose(2, 3).contiguous(), values, self.positions)
        else:
            heads = queries.shape[1]
            keys, values = repeat_heads(keys, heads), repeat_heads(values, heads)
            out = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)
        return out.transpose(1, 2).flatten(0, 1)

    def _written(self, store: Tensor, fresh: Tensor) -> Tensor:
        """Keep the new ones; return all that the slots hold, old and new: [slots, kv_heads, seen, dim]."""
        raise NotImplementedError

    def together(self, x: Tensor) -> Tensor:
        """[tokens, 1, dim] -> [slots, seen, 1, dim], as in `PackedAttention`; caches `x` in place of keys."""
        return self._written(self.cache.keys[0], x)[:, :, : self.last].transpose(1, 2)

    def apart(self, states: Tensor) -> Tensor:
        row = torch.arange(self.count, device=states.device)[:, None]
        return states[row, self.positions].flatten(0, 1)


class SlotAttention(ExtendAttention):
    def __init__(self, cache: SlotCache, slots: Sequence[int], positions: Tensor) -> None:
        super().__init__(cache, positions)
        self.slots = torch.tensor(slots, device=positions.device)

    def _written(self, store: Tensor, fresh: Tensor) -> Tensor:
        store[self.slots[:, None], :, self.positions] = fresh.view(
            self.count, self.width, *fresh.shape[1:]
        ).to(store.dtype)
        return store[self.slots, :, : self.seen]


@dataclass
class SlotRun:
    """Neighbouring slots that stand at one place, as attempts at one task do, and move on together."""

    slots: slice
    place: int
    moving: int
    stores: tuple[Tensor, ...] = ()  # keys and values of all layers, [layers, slots, kv_heads, room, dim]

    def targets(self) -> list[Sequence[Tensor]]:
        """Views of where new keys and new values go, by layer. All are made at once: a view costs as much as
        the write."""
        return [store.select(3, self.place).unbind() for store in self.stores]


class Window(NamedTuple):
    """The keys that are looked at, the same for as many tokens as are aligned, and room to work in.

    The query heads that share a key-value head stand where a sequence of queries would."""

    size: int
    layers: list[tuple[Tensor, Tensor]]  # keys [slots × kv_heads, dim, size], values
    bias: Tensor
    scaled: Tensor  # [slots, heads, dim]
    queries: Tensor  # the same as [slots × kv_heads, heads of each, dim]
    scores: Tensor  # [slots × kv_heads, heads of each, size]
    probability: Tensor
    out: Tensor  # [slots, heads, dim]
    products: list[tuple[BatchedProduct, BatchedProduct]]  # of each layer: scores, and what is gathered


class DecodeAttention:
    """One new token for each of the first slots; nothing is gathered, idle slots ride along.

    Lives as long as the same sequences are in the same slots: `advance` moves it on by a token.
    """

    def __init__(self, cache: SlotCache, positions: Tensor, moving: Tensor, seen: int) -> None:
        """`positions` [slots] of the tokens to come, of which those that are `moving` go on."""
        _, _, heads, room, dim = cache.keys.shape
        slots, device, dtype = len(positions), positions.device, cache.keys.dtype
        self.positions, self.moving, self.seen = positions, moving, seen
        self.layers, self.ordered = cache.layers(slots), ordered(cache.keys)
        place = positions[:, None, None, None]  # where the new ones go; moves as the positions do
        self.key_place, self.value_place = place.expand(-1, heads, dim, 1), place.expand(-1, heads, 1, dim)
        self.runs = _runs(positions.tolist(), moving.tolist()) if self.ordered else []
        for run in self.runs:
            run.stores = cache.keys[:, run.slots], cache.values[:, run.slots]
        self.targets = [run.targets() for run in self.runs]
        column = torch.arange(room, device=device)
        bias = torch.zeros(slots, room, dtype=dtype, device=device)
        bias.masked_fill_(column > positions[:, None], float("-inf"))
        self.bias = bias.repeat_interleave(heads, 0)[:, None]
        self.last = positions.repeat_interleave(heads)[:, None, None]
        self.step = moving.repeat_interleave(heads)[:, None, None]
        # A number would be made a tensor each time; in low precision that is how it keeps all its digits.
        self.scale = torch.tensor(dim**-0.5) if self.ordered else dim**-0.5
        self.window: Window | None = None
        self.matrices = (slots * heads, -1, dim)

    def advance(self) -> None:
        self.positions += self.moving
        self.last += self.step
        self.bias.scatter_(2, self.last, 0.0)
        self.seen += 1
        for run in self.runs:
            run.place += run.moving
        self.targets = [run.targets() for run in self.runs]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The result is overwritten by the next call."""
        dtype = self.bias.dtype
        if q.dtype != dtype:
            return self(layer, q.to(dtype), k.to(dtype), v.to(dtype)).to(q.dtype)
        self._keep(layer, k, v)
        window = self.window
        if window is None or window.size < self.seen:
            window = self.window = self._window(q.shape)
        keys, values = window.layers[layer]
        torch.mul(q, self.scale, out=window.scaled)
        if not window.products:
            return attended(window.queries, keys, values, window.bias)[0].view(q.shape)
        # With so few queries plain products are faster than a fused kernel.
        scores, gathered = window.products[layer]
        scores().add_(window.bias)
        torch.softmax(window.scores, -1, out=window.probability)
        gathered()
        return window.out

    def _keep(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write new keys and values to their places."""
        if not self.runs:
            of_layer = self.layers[layer]
            of_layer.keys.scatter_(3, self.key_place, k.unsqueeze(3))
            of_layer.values.scatter_(2, self.value_place, v.unsqueeze(2))
            return
        if len(self.runs) == 1:
            keys, values = self.targets[0]
            keys[layer].copy_(k)
            values[layer].copy_(v)
            return
        for run, (keys, values) in zip(self.runs, self.targets, strict=True):
            keys[layer].copy_(k[run.slots])
            values[layer].copy_(v[run.slots])

    def _window(self, shape: torch.Size) -> Window:
        """Build the window for queries of this shape over the tokens seen so far."""
        size = aligned(self.seen)
        layers = [(one.all_keys.narrow(2, 0, size), one.all_values.narrow(1, 0, size)) for one in self.layers]
        scaled, out = self.bias.new_empty(shape), self.bias.new_empty(shape)
        queries, gathered = scaled.view(self.matrices), out.view(self.matrices)
        scores = self.bias.new_empty(*queries.shape[:2], size)
        probability = torch.empty_like(scores)
        products = []
        if self.ordered and fixed(scaled):
            products = [
                (BatchedProduct(queries, keys, scores), BatchedProduct(probability, values, gathered))
                for keys, values in layers
            ]
        return Window(
            size,
            layers,
            self.bias.narrow(2, 0, size),
            scaled,
            queries,
            scores,
            probability,
            out,
            products,
        )

    def together(self, x: Tensor) -> Tensor:
        """[slots, 1, dim] -> [slots, seen, 1, dim]: as `PackedAttention`, `x` kept in place of keys."""
        keys = self.layers[0].keys
        keys.scatter_(3, self.key_place, x.to(keys.dtype).unsqueeze(3))
        return keys.narrow(3, 0, self.seen).permute(0, 3, 1, 2)

    def apart(self, states: Tensor) -> Tensor:
        # An idle row may stand beyond the end; its result is not used.
        place = self.positions.clamp(max=self.seen - 1)
        return states[torch.arange(len(states), device=states.device), place]


def _runs(places: Sequence[int], moving: Sequence[int]) -> list[SlotRun]:
    """None where there are too many."""
    runs: list[SlotRun] = []
    for slot, state in enumerate(zip(places, moving, strict=True)):
        if runs and (runs[-1].place, runs[-1].moving) == state:
            runs[-1].slots = slice(runs[-1].slots.start, slot + 1)
        else:
            runs.append(SlotRun(slice(slot, slot + 1), *state))
    return runs if len(runs) <= MOST_RUNS else []
