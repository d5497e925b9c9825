"""Ctrl-C, answered where it is safe: at once while nothing is being changed, else after the update.

A run that was asked to stop writes a checkpoint, then leaves as the signal would have made it: with exit
status 130 after Ctrl-C (SIGINT), 143 after SIGTERM. A second signal does not wait for the checkpoint.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any


class Stopped(Exception):
    """The user asked the run to stop."""


class Interrupt:
    """Catches SIGINT and SIGTERM while a run is on. A second one stops at once, whatever is going on."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that came
        self._cancel: Callable[[], None] | None = None
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
        if self.signal is not None:
            raise _departure(number)
        self.signal = number
        # Raising here would land anywhere, in a scorer or in the event loop's own code, and be taken for a
        # failure of theirs; a cancelled task ends where it waits.
        if self._cancel is not None:
            self._cancel()

    @contextmanager
    def safe(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Within, nothing is changed that a checkpoint keeps: a request to stop is answered by `cancel`."""
        self._cancel = cancel
        try:
            self.check()
            yield
        except asyncio.CancelledError:
            self.check()
            raise
        finally:
            self._cancel = None

    def check(self) -> None:
        if self.signal is not None:
            raise Stopped

    def leave(self) -> None:
        """End as the signal that came would have; nothing if none did."""
        if self.signal is not None:
            raise _departure(self.signal)


def _departure(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
