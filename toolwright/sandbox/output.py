"""What a run writes: kept up to a limit, counted beyond it."""

from __future__ import annotations

import contextlib
import os

_AT_ONCE = 1 << 16
_AT_MOST = 16  # reads in a row, so that a flood does not keep the worker from its other runs


class Output:
    """One of a run's two streams, read by the worker."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self.descriptor = descriptor
        self.total = 0
        self._limit = limit
        self._kept = bytearray()
        self._last = b""

    @property
    def truncated(self) -> bool:
        return self.total > self._limit

    def drain(self, at_most: int = _AT_MOST) -> bool:
        """Takes what is there; False when the stream has ended."""
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
        """The text so far, which is then forgotten. Bytes that are not UTF-8 are shown as U+FFFD."""
        text = self._kept.decode("utf-8", "replace")
        self._kept.clear()
        self.total = 0
        self._last = b""
        return text

    def last_line(self) -> bytes:
        return self._last.rstrip().rpartition(b"\n")[2]

    def ends_in_memory_error(self) -> bool:
        """Whether the last words are those of a program that was refused memory: Python's, numpy's, C++'s."""
        last = self.last_line().strip()
        return last.partition(b":")[0].endswith(b"MemoryError") or last == b"what():  std::bad_alloc"

    def close(self) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self.descriptor)
            self.descriptor = -1
