"""The output of a run: kept up to a limit, counted beyond it."""

from __future__ import annotations

import contextlib
import os

_AT_ONCE = 1 << 16
_AT_MOST = 16  # reads in a row, so that a flood does not keep the worker from its other runs
# Written in JSON as six bytes each; other characters take two at most.
_WRITTEN_LONG = bytes({*range(32)} - {*b"\b\t\n\f\r"})


class Output:
    """An output stream of a run, read by the worker."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.total = 0
        self._limit = limit
        self._kept = bytearray()
        self._last = b""

    @property
    def truncated(self) -> bool:
        self._cut_to_fit()
        return self.total > len(self._kept)

    def _cut_to_fit(self) -> None:
        """Cuts the output to the limit, counted as in the answer: a byte that is not text is 3, a NUL 6."""
        if _size_in_answer(self._kept) <= self._limit:
            return
        fits, too_long = 0, len(self._kept)
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            if _size_in_answer(self._kept[:middle]) <= self._limit:
                fits = middle
            else:
                too_long = middle
        del self._kept[fits:]

    def drain(self, at_most: int = _AT_MOST) -> bool:
        """Reads what is there; False if the stream has ended."""
        for _ in range(at_most):
            try:
                data = os.read(self.descriptor, _AT_ONCE)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.total += len(data)
            if len(self._kept) < self._limit:
                self._kept += data[: self._limit - len(self._kept)]
            self._last = (self._last + data)[-256:]
        return True

    def take(self) -> str:
        """The text so far, which is then dropped. Bytes that are not UTF-8 become U+FFFD."""
        self._cut_to_fit()
        text = self._kept.decode("utf-8", "replace")
        self._kept.clear()
        self.total = 0
        self._last = b""
        return text

    def last_line(self) -> bytes:
        return self._last.rstrip().rpartition(b"\n")[2]

    def ends_in_memory_error(self) -> bool:
        """Return True if the last line is an error for lack of memory: Python's, numpy's or C++'s."""
        last = self.last_line().strip()
        return last.partition(b":")[0].endswith(b"MemoryError") or last == b"what():  std::bad_alloc"

    def close(self) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1


def _size_in_answer(kept: bytearray) -> int:
    """The size of this output in an answer, with short escapes counted as one byte."""
    long = len(kept) - len(kept.translate(None, _WRITTEN_LONG))
    text = len(kept) if kept.isascii() else len(kept.decode("utf-8", "replace").encode())
    return text + 5 * long
