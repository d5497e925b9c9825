"""Standard output for as long as somebody reads it: `| head` and a closed terminal do not end a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TextIO


class Outlet:
    """A stream that falls silent where writing to it fails; `gone` is told of it once."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream  # None where a process was started without one
        self.gone: Callable[[], None] = lambda: None

    def write(self, text: str) -> int:
        self._try(lambda stream: stream.write(text))
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
    """What is still in its buffer, and whatever else writes there, goes nowhere without a complaint."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except (OSError, ValueError):  # not a file of the system's, or closed
        return
