"""Standard output that may go away: `| head` or a closed terminal does not end a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO


class Outlet:
    """A stream that goes silent when a write to it fails, and then calls `gone` once."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None where a process was started without one
        self.gone: Callable[[], None] = lambda: None

    def write(self, text: str) -> int:
        shown = text.encode(self.encoding, "replace").decode(self.encoding)  # a terminal may lack a sign
        self._try(lambda stream: stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._try(lambda stream: stream.flush())

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    def fileno(self) -> int:
        if self._stream is None:
            raise OSError("there is no standard output")
        return self._stream.fileno()

    @property
    def encoding(self) -> str:
        return getattr(self._stream, "encoding", None) or "utf-8"

    def _try(self, work: Callable[[TextIO], Any]) -> None:
        stream = self._stream
        if stream is None:
            return
        try:
            work(stream)
        except (OSError, ValueError):  # a pipe nobody reads, a terminal that hung up, a file on a full disk
            self._stream = None
            silence(stream)
            self.gone()


def silence(stream: TextIO) -> None:
    """Send its buffer, and all that is written to it later, to the null device."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # not a file of the system's, or closed
        return
