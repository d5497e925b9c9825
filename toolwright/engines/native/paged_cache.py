"""A cache in pages: memory follows what sequences use, and those that begin alike hold it once."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from toolwright.batch import sent
from toolwright.config import schema
from toolwright.engines.native.cache import ExtendAttention, Place, SlotCache, common, zeros
from toolwright.failures import UserError, nearest
from toolwright.models.attention import aligned
from toolwright.models.decoder import Shape

ROOT = 0  # what comes before a first page; as a page, it belongs to nobody


class PagePool:
    """Pages 1 to `count`. A page is held by one sequence or by several that begin alike.

    A full page whose tokens are known is remembered: the pages of a sequence are a path of a tree, where each
    is found by the page before it and its own tokens. One that nobody holds any more is idle, and is found
    until its memory is needed. Whoever holds a page holds those before it, and gives the last back first: so
    an idle page is older than the idle ones before it, and none is lost while one after it is remembered.
    """

    def __init__(self, count: int, page_tokens: int) -> None:
        self.count, self.page_tokens = count, page_tokens
        self.peak = self.peak_saved = 0
        self.clear()

    def clear(self) -> None:
        """Nobody holds anything."""
        self.free = list(range(self.count, 0, -1))  # the lowest is taken first
        self.holders = [0] * (self.count + 1)
        self.held = self.uses = 0  # pages that somebody holds, and how often they are held in all
        self.idle: OrderedDict[int, None] = OrderedDict()
        self._pages: dict[tuple[int, tuple[int, ...]], int] = {}  # (the page before, its tokens) -> page
        self._keys: dict[int, tuple[int, tuple[int, ...]]] = {}

    @property
    def room(self) -> int:
        """Pages that can be taken."""
        return len(self.free) + len(self.idle)

    @property
    def saved(self) -> int:
        """Pages that would be needed in addition if none was shared."""
        return self.uses - self.held

    def pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_tokens)

    def take(self, count: int) -> list[int]:
        """Take this many pages; ask `room` first."""
        while len(self.free) < count:
            page, _ = self.idle.popitem(last=False)
            del self._pages[self._keys.pop(page)]
            self.free.append(page)
        taken = [self.free.pop() for _ in range(count)]
        for page in taken:
            self.holders[page] = 1
        self._counted(held=count, uses=count)
        return taken

    def share(self, pages: Sequence[int]) -> None:
        """Count one more holder of each page."""
        woken = 0
        for page in pages:
            if not self.holders[page]:
                del self.idle[page]
                woken += 1
            self.holders[page] += 1
        self._counted(held=woken, uses=len(pages))

    def give_back(self, pages: Sequence[int]) -> None:
        """Count one holder less of each page; they are in a sequence's order."""
        for page in reversed(pages):
            self.holders[page] -= 1
            if not self.holders[page]:
                self.held -= 1
                if page in self._keys:
                    self.idle[page] = None
                else:
                    self.free.append(page)
        self.uses -= len(pages)

    def _counted(self, *, held: int, uses: int) -> None:
        self.held += held
        self.uses += uses
        self.peak, self.peak_saved = max(self.peak, self.held), max(self.peak_saved, self.saved)

    def find(self, tokens: Sequence[int]) -> list[int]:
        """The longest remembered path of full pages that these tokens begin with."""
        found: list[int] = []
        before, size = ROOT, self.page_tokens
        for start in range(0, len(tokens) - size + 1, size):
            page = self._pages.get((before, tuple(tokens[start : start + size])))
            if page is None:
                break
            found.append(page)
            before = page
        return found

    def remember(self, tokens: Sequence[int], pages: Sequence[int]) -> None:
        """Somebody's pages, as far as these tokens fill them. Where another sequence has a page of the same
        tokens already, the rest is not remembered: it would be found by a page that its holder lacks."""
        before, size = ROOT, self.page_tokens
        for number in range(len(tokens) // size):
            page = pages[number]
            if page not in self._keys:
                key = before, tuple(tokens[number * size : (number + 1) * size])
                if key in self._pages:
                    return
                self._pages[key], self._keys[page] = page, key
            before = page

    def forget(self) -> None:
        """Nothing is found any more: the weights that it was computed with are gone."""
        self.free.extend(reversed(self.idle))
        self.idle.clear()
        self._pages.clear()
        self._keys.clear()

    def alone(self, page: int) -> bool:
        """True if its one holder may write to it again: nobody else reads it, or will find it."""
        return self.holders[page] == 1 and page not in self._keys


GPU_SHARE = 0.4  # of the memory that is free on a GPU; the rest is for passes
PAGE_TOKENS = 64  # as many as the kernel of attention looks at together: it reads one number for each page
COPIED_AT_ONCE = 1 << 28  # bytes


def token_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Keys and values of one token."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * dtype.itemsize


class CacheSize(NamedTuple):
    """Pages of a cache, one that belongs to nobody not counted."""

    page_tokens: int
    pages: int

    @property
    def tokens(self) -> int:
        return self.pages * self.page_tokens

    @classmethod
    def fewest(cls, context: int, page_tokens: int = PAGE_TOKENS) -> CacheSize:
        """The least: one sequence as long as the model allows. With less, a sequence might never end."""
        return cls(page_tokens, -(-context // page_tokens))

    @classmethod
    def fitting(
        cls, slots: int, shape: Shape, dtype: torch.dtype, *, free: int, page_tokens: int = PAGE_TOKENS
    ) -> CacheSize:
        """For so many sequences of any length, or as many pages as fit into a share of so many bytes."""
        least = cls.fewest(shape.context, page_tokens)
        page, room = page_tokens * token_bytes(shape, dtype), int(free * GPU_SHARE)
        if (least.pages + 1) * page > room:
            raise UserError(
                f"the cache of one sequence of model.context={shape.context} tokens takes "
                f"{(least.pages + 1) * page / 2**30:.1f} GiB, and {max(0, room) / 2**30:.1f} GiB of the GPU "
                "are free for caches; lower model.context"
            )
        return cls(page_tokens, min(slots * least.pages, room // page - 1))


class CacheParams(NamedTuple):
    """The native engine's `engine.params`."""

    page_tokens: int | None = None  # tokens of a page; None: no pages in main memory, else `PAGE_TOKENS`
    cache_tokens: int | None = None  # of all pages; None: for every slot, or what fits

    @classmethod
    def of(cls, config: schema.EngineConfig) -> CacheParams:
        for name, value in config.params.items():
            if name not in cls._fields:
                raise UserError(
                    f"engine.params.{name} is unknown to the native engine; {nearest(name, cls._fields)}"
                )
            if type(value) is not int or value < 1:
                raise UserError(f"engine.params.{name}={value!r}: expected a positive whole number")
        return cls(**config.params)


class ParkedPages(NamedTuple):
    """The cache of an attempt between two of its turns."""

    pages: list[int]
    tokens: list[int]  # whose keys and values they hold


class PagedCache:
    """Keys and values in pages. A slot is a sequence's row of the table of pages; parked ones need none."""

    def __init__(
        self, shape: Shape, slots: int, size: CacheSize, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        if size.tokens < shape.context:
            raise UserError(
                f"a cache of {size.tokens} tokens does not hold one sequence of model.context={shape.context}"
                "; raise engine.params.cache_tokens, or lower model.context"
            )
        memory = (shape.layers, size.pages + 1, shape.kv_heads, size.page_tokens, shape.head_dim)
        self.keys, self.values = (zeros(memory, dtype, device) for _ in range(2))
        self.slots, self.context, self.page_tokens = slots, shape.context, size.page_tokens
        self.pool = PagePool(size.pages, size.page_tokens)
        self.width = self.pool.pages_for(aligned(shape.context))  # pages of the longest sequence
        self.ample = size.pages >= slots * self.pool.pages_for(shape.context)  # it cannot get full
        self.table = np.zeros((slots, self.width), dtype=np.int32)
        self.clear()

    def clear(self) -> None:
        """Every slot and every page is free, whoever held it."""
        self.pool.clear()
        self.table[:] = 0
        self.held: list[list[int]] = [[] for _ in range(self.slots)]
        self.free = list(range(self.slots))  # a heap, so that those in use stay together
        self.parked: OrderedDict[str, ParkedPages] = OrderedDict()
        self.unread: set[int] = set()  # pages that were given to prompts which are not computed yet

    @property
    def has_slot(self) -> bool:
        return bool(self.free)

    def take(
        self,
        attempt: str,
        tokens: Sequence[int],
        *,
        leader: int | None = None,
        shares: bool = True,
        spare: int = 0,
    ) -> Place | None:
        """A slot with pages for these tokens and the next one, if `spare` more are left that others may need.
        `leader`: the slot of a sequence that has the same tokens. `shares`: the tokens tell all of the
        prompt, which has no images."""
        if not self.free:
            return None
        parked = self.parked.pop(attempt, None)
        if parked is not None:
            pages, cached = self._kept_of(parked, tokens, shares)
        elif leader is not None:
            pages = self.held[leader][: (len(tokens) - 1) // self.page_tokens]
            self.pool.share(pages)
            cached = len(pages) * self.page_tokens
        else:
            pages = self.pool.find(tokens[: len(tokens) - 1]) if shares else []
            self.pool.share(pages)
            cached = len(pages) * self.page_tokens
        needed = self.pool.pages_for(min(len(tokens) + 1, self.context)) - len(pages)
        if not self._make_room(needed + (0 if self.ample else spare)):
            if parked is not None:
                self.parked[attempt] = ParkedPages(pages, list(tokens[:cached]))
            else:
                self.pool.give_back(pages)
            return None
        waits_for = pages[-1] if pages and pages[-1] in self.unread else None
        slot = heapq.heappop(self.free)
        self._hold(slot, [*pages, *self.pool.take(max(0, needed))])
        if leader is None:
            self._promise(slot, tokens, cached, shares)
        return Place(slot, cached, self.room_of(slot), parked is not None, waits_for)

    def _kept_of(self, parked: ParkedPages, tokens: Sequence[int], shares: bool) -> tuple[list[int], int]:
        """Its pages as far as the tokens are the same; one that others read is not written to again."""
        cached = common(parked.tokens, tokens, limit=len(tokens) - 1)
        if not shares and cached < len(parked.tokens):
            cached = 0  # never a part of an image
        whole, rest = divmod(cached, self.page_tokens)
        kept = whole
        if rest and self.pool.alone(parked.pages[whole]):
            kept += 1
        else:
            cached = whole * self.page_tokens
        self.pool.give_back(parked.pages[kept:])
        return parked.pages[:kept], cached

    def _promise(self, slot: int, tokens: Sequence[int], cached: int, shares: bool) -> None:
        """The full pages that are computed now can be found at once: whoever shares them waits for it."""
        pages, whole = self.held[slot], len(tokens) // self.page_tokens
        self.unread.update(pages[cached // self.page_tokens : whole])
        if shares:
            self.pool.remember(tokens, pages)

    def read(self, slot: int, start: int, end: int) -> None:
        """These tokens of a prompt are computed."""
        if self.unread:
            size = self.page_tokens
            self.unread.difference_update(self.held[slot][start // size : end // size])

    def _hold(self, slot: int, pages: list[int]) -> None:
        self.held[slot] = pages
        self.table[slot, : len(pages)] = pages

    def _make_room(self, pages: int) -> bool:
        """Free pages, if need be those of parked attempts. The one that has waited longest computes its pages
        again."""
        while self.pool.room < pages and self.parked:
            self.release(next(iter(self.parked)))
        return self.pool.room >= pages

    def room_of(self, slot: int) -> int:
        """Tokens that its pages hold."""
        return len(self.held[slot]) * self.page_tokens

    def reserve(self, slot: int, tokens: int) -> bool:
        """Reserve pages for this many tokens. Returns False if too few are free."""
        pages = self.held[slot]
        needed = self.pool.pages_for(tokens) - len(pages)
        if needed > 0:
            if not self._make_room(needed):
                return False
            self._hold(slot, [*pages, *self.pool.take(needed)])
        return True

    def could_take(self, tokens: int, spare: int) -> bool:
        """True if a sequence of so many tokens most likely finds room. One that is shared may find it where
        this is False."""
        if self.ample or not self.free:
            return bool(self.free)
        kept = sum(len(parked.pages) for parked in self.parked.values())
        return self.pool.room + kept >= self.pool.pages_for(tokens + 1) + spare

    def park(self, slot: int, attempt: str, tokens: list[int], *, shares: bool = True) -> None:
        """Keep the pages of these tokens for the attempt's next turn; others may find the full ones."""
        self.release(attempt)  # an attempt that took two turns at once keeps the later
        pages, kept = self.held[slot], self.pool.pages_for(len(tokens))
        self.pool.give_back(pages[kept:])
        if shares:
            self.pool.remember(tokens, pages)
        self.parked[attempt] = ParkedPages(pages[:kept], tokens)
        self._vacate(slot)

    def use(self) -> dict[str, float]:
        """The most that was in use, and saved by sharing, since this was last asked."""
        pool, size = self.pool, self.page_tokens
        peak, saved = pool.peak, pool.peak_saved
        pool.peak, pool.peak_saved = pool.held, pool.saved
        return {
            "use/cache": peak / pool.count,
            "use/cache_tokens": peak * size,
            "use/cache_shared_tokens": saved * size,
        }

    def give_back(self, slot: int) -> None:
        self.pool.give_back(self.held[slot])
        self._vacate(slot)

    def suspend(self, slot: int, tokens: Sequence[int], *, shares: bool) -> None:
        """Free a sequence's pages. Those that are not reused meanwhile are found again when it resumes."""
        if shares:
            self.pool.remember(tokens, self.held[slot])
        self.give_back(slot)

    def _vacate(self, slot: int) -> None:
        self.held[slot] = []
        self.table[slot] = 0
        heapq.heappush(self.free, slot)

    def release(self, attempt: str) -> None:
        parked = self.parked.pop(attempt, None)
        if parked is not None:
            self.pool.give_back(parked.pages)

    def forget(self) -> None:
        """Drop all parked and reusable pages: they were computed with old weights."""
        for attempt in list(self.parked):
            self.release(attempt)
        self.pool.forget()

    def lowest(self) -> int:
        return heapq.heappop(self.free)

    def move(self, slot: int, target: int, length: int) -> None:
        """Move a sequence to a slot that was taken; `length` tokens stay where they are."""
        self._hold(target, self.held[slot])
        self._vacate(slot)

    def resting(self) -> list[tuple[int, int]]:
        """Always empty: parked sequences hold pages and no slot."""
        return []

    def copy_opening(self, pairs: Sequence[tuple[int, int, int]]) -> None:
        """From a slot to another, the tokens of a prompt of so many that the two do not share: (from, to,
        tokens). All but the last page are shared."""
        last = [(source, target, (length - 1) // self.page_tokens) for source, target, length in pairs]
        numbers = [(self.held[source][page], self.held[target][page]) for source, target, page in last]
        each = self.keys[:, 0].nbytes
        for start in range(0, len(numbers), most := max(1, COPIED_AT_ONCE // each)):
            source, target = sent(torch.tensor(numbers[start : start + most]).t(), self.keys.device)
            for store in (self.keys, self.values):
                store.index_copy_(1, target, store.index_select(1, source))

    def pages_of(self, slots: Sequence[int], width: int) -> Tensor:
        """[slots, width] int32 on the host: the first pages of each; 0 where it has fewer."""
        return torch.from_numpy(self.table[list(slots), :width])

    def cells(self, slots: Sequence[int], starts: Sequence[int], ends: Sequence[int]) -> Tensor:
        """[3, tokens]: page, place in the page, and position of every token from `starts` to `ends`."""
        position = np.concatenate([np.arange(*span) for span in zip(starts, ends, strict=True)])
        slot = np.repeat(np.array(slots), np.array(ends) - np.array(starts))
        number, place = np.divmod(position, self.page_tokens)
        return sent(torch.from_numpy(np.stack([self.table[slot, number], place, position])), self.keys.device)

    def extending(self, slots: Sequence[int], positions: Tensor) -> PagedAttention:
        return PagedAttention(self, slots, positions)

    def decoding(self, positions: Tensor, moving: Tensor, seen: int) -> PagedDecoding:
        return PagedDecoding(self, positions, moving)


class PagedAttention(ExtendAttention):
    """The same over pages, which are laid side by side to be looked at."""

    def __init__(self, cache: PagedCache, slots: Sequence[int], positions: Tensor) -> None:
        super().__init__(cache, positions)
        width, device = cache.pool.pages_for(self.seen), positions.device
        self.pages = cache.pages_of(slots, width).to(device, torch.int64)
        number = torch.div(self.positions, cache.page_tokens, rounding_mode="floor")
        self.cells = self.pages.gather(1, number), self.positions - number * cache.page_tokens

    def _written(self, store: Tensor, fresh: Tensor) -> Tensor:
        page, place = self.cells
        store[page, :, place] = fresh.view(self.count, self.width, *fresh.shape[1:]).to(store.dtype)
        found = store[self.pages].transpose(1, 2)  # [slots, kv_heads, pages, tokens of a page, dim]
        return found.flatten(2, 3)[:, :, : self.seen]


class PagedDecoding:
    """One new token for each of the first slots, over pages; `advance` moves on by a token."""

    def __init__(self, cache: PagedCache, positions: Tensor, moving: Tensor) -> None:
        self.cache, self.positions, self.moving = cache, positions, moving
        self._attention: PagedAttention | None = None

    @property
    def attention(self) -> PagedAttention:
        """Of this token: by the next one there may be another page."""
        if self._attention is None:
            self._attention = self.cache.extending(range(len(self.positions)), self.positions[:, None])
        return self._attention

    def advance(self) -> None:
        self.positions = self.positions + self.moving
        self._attention = None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        dtype = self.cache.keys.dtype
        if q.dtype != dtype:
            return self.attention(layer, q.to(dtype), k.to(dtype), v.to(dtype)).to(q.dtype)
        return self.attention(layer, q, k, v)

    def together(self, x: Tensor) -> Tensor:
        return self.attention.together(x)

    def apart(self, states: Tensor) -> Tensor:
        return self.attention.apart(states)


def new_cache(
    config: schema.EngineConfig, shape: Shape, *, dtype: torch.dtype, device: torch.device
) -> SlotCache | PagedCache:
    """Slots in main memory, unless pages are asked for; on a GPU as many pages as are needed or fit."""
    stated = CacheParams.of(config)
    if device.type == "cpu" and stated.page_tokens is None:
        return SlotCache(shape, config.slots, dtype=dtype, device=device)
    page_tokens = stated.page_tokens or PAGE_TOKENS
    size = CacheSize(page_tokens, config.slots * CacheSize.fewest(shape.context, page_tokens).pages)
    if stated.cache_tokens is not None:
        size = CacheSize(page_tokens, min(size.pages, -(-stated.cache_tokens // page_tokens)))
    elif device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
        size = CacheSize.fitting(config.slots, shape, dtype, free=free, page_tokens=page_tokens)
    return PagedCache(shape, config.slots, size, dtype=dtype, device=device)
