"""The text of single tokens, by the tokenizer that the run folder keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolwright.observe.rollouts import Version, version_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PLACES = (("tokenizer.json",), ("model", "tokenizer.json"))  # version 0.1 had the second alone
MOST_BYTES = 128 << 20
LOOK_BACK = 4  # tokens before the one in question: a character of UTF-8 has at most four bytes
BROKEN = "\ufffd"


class TokenTexts:
    """Decodes what each token adds to the text. None without a tokenizer that can be read."""

    def __init__(self, find: Callable[..., Path | None]) -> None:
        """`find` gives a file of the run folder by the parts of its path, None if it is not there."""
        self._find = find
        self._version: Version | None = None
        self._backend: Backend | None = None

    def of(self, tokens: Sequence[int]) -> list[str] | None:
        """The text of each token. Of a character made of several tokens the last one has it all."""
        backend = self._load()
        if backend is None:
            return None
        try:
            return _pieces(backend, tokens)
        except Exception:  # a tokenizer of other tokens: whatever its library raises, the text is still there
            return None

    def _load(self) -> Backend | None:
        for place in PLACES:
            path = self._find(*place)
            if path is None:
                continue
            version = version_of(path)
            if version is not None and version != self._version and version[1] <= MOST_BYTES:
                from tokenizers import Tokenizer as Backend

                try:
                    self._backend = Backend.from_file(str(path))
                except Exception:  # the library has one class for all errors
                    self._backend = None
                self._version = version
            return self._backend
        return None


def _pieces(backend: Backend, tokens: Sequence[int]) -> list[str]:
    """Decode a few tokens with and without each next one. What a character lacks shows as U+FFFD."""
    pieces: list[str] = []
    start = 0  # of the tokens whose text is still open
    for place in range(len(tokens)):
        before = max(0, start - LOOK_BACK)
        known = backend.decode(tokens[before:start], skip_special_tokens=False)
        text = backend.decode(tokens[before : place + 1], skip_special_tokens=False)
        piece = text[len(known) :] if text.startswith(known) else text
        if piece.endswith(BROKEN) and place + 1 - start < LOOK_BACK:
            pieces.append("")
            continue
        pieces.append(piece)
        start = place + 1
    return pieces
