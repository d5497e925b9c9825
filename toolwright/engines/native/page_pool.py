"""Pages of the cache: which are free, who holds each, and which sequences begin with what they contain.

Pages are numbers here; the memory behind them is `paged_cache.py`'s.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

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
