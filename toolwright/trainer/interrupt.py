"""Ctrl-C, answered where it is safe: at once while nothing is being changed, else after the update."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):
    """The user asked the run to stop."""


class Interrupt:
    """Catches SIGINT and SIGTERM while a run is on. A second one stops at once, whatever is going on."""

    def __init__(self) -> None:
        self.asked = False
        self._safe = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if self._safe:
            raise Stopped

    @contextmanager
    def safe(self) -> Iterator[None]:
        """Within, nothing is changed that a checkpoint keeps: a request to stop is answered at once."""
        self.check()
        self._safe = True
        try:
            yield
        finally:
            self._safe = False

    def check(self) -> None:
        if self.asked:
            raise Stopped
