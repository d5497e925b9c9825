"""An answer as it grows: of the text so far, as much as no later token can take back."""

from __future__ import annotations

from collections.abc import Sequence

from toolwright.models.tokenizer import REPLACEMENT, Tokenizer


class Teller:
    """Told one token after the other. At a stop string, or what a call begins with, the caller's text may be
    over: from there on all is kept until the end, and so is white space that may stand before a call."""

    def __init__(self, tokenizer: Tokenizer, *, stops: Sequence[str], opens: Sequence[str]) -> None:
        self._tokenizer, self._marks, self._calls = tokenizer, (*stops, *opens), bool(opens)
        self._tokens: list[int] = []
        self._start = self._read = 0  # tokens[start:read] are those before, for what decoding depends on
        self._text = ""
        self._shown = 0
        self._closed = False

    def told(self, token: int) -> str:
        """What may be shown now, and was not before."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._start : self._read])
        now = self._tokenizer.decode(self._tokens[self._start :])
        if len(now) > len(before) and not now.endswith(REPLACEMENT):  # half a character is none yet
            self._text += now[len(before) :]
            self._start, self._read = self._read, len(self._tokens)
        place = self._sure()
        return self._up_to(max(self._shown, len(self._text[:place].rstrip())) if self._calls else place)

    def rest(self, final: str) -> str:
        """What is left to be shown of the text as it turned out in the end."""
        shown = self._text[: self._shown]
        return final[len(shown) :] if final.startswith(shown) else ""

    def _sure(self) -> int:
        if self._closed:
            return self._shown
        places = [self._text.find(mark, self._shown) for mark in self._marks]
        found = [place for place in places if place >= 0]
        if found:
            self._closed = True
            return min(found)
        return len(self._text) - max((self._half(mark) for mark in self._marks), default=0)

    def _half(self, mark: str) -> int:
        """How many characters at the end may be the beginning of this mark."""
        longest = min(len(mark) - 1, len(self._text) - self._shown)
        return next((n for n in range(longest, 0, -1) if self._text.endswith(mark[:n])), 0)

    def _up_to(self, place: int) -> str:
        shown, self._shown = self._shown, place
        return self._text[shown:place]
