"""Ctrl-C, answered where it is safe: at once while nothing is being changed, else after the update.

A run that was asked to stop writes a checkpoint, then leaves as the signal would have made it: with exit
status 130 after Ctrl-C (SIGINT), 143 after SIGTERM, 129 when its terminal hangs up (SIGHUP). A second signal
does not wait for the checkpoint, nor for a tool that blocks: the process is gone within two seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

from toolwright.runtime import reaper

NOTICE = b"toolwright: stopping; a checkpoint is written first (again: stop at once, without one)\n"


class StopRequested(Exception):
    """The user asked the run to stop."""


class Interrupt:
    """Catches SIGINT, SIGTERM and SIGHUP during a run, but not a SIGHUP that `nohup` told it to ignore. A
    second signal stops the process at once, whatever it is doing."""

    def __init__(self) -> None:
        self.signal: int | None = None  # the first that came
        self._cancel: Callable[[], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # What is raised here may be taken for a tool's own mistake, and what clears up may wait for it.
            reaper.exit_soon(128 + number)
            raise _departure(number)
        self.signal = number
        with suppress(OSError):  # nobody may be there to read it
            os.write(2, NOTICE)
        # Raising here would land anywhere, in a scorer or in the event loop's own code, and be taken for a
        # failure of theirs; a cancelled task ends where it waits.
        if self._cancel is not None:
            self._cancel()

    @contextmanager
    def safe(self, cancel: Callable[[], None]) -> Iterator[None]:
        """Allow `cancel` to be called inside this block, because nothing changes there that a checkpoint
        keeps."""
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
            raise StopRequested

    def leave(self) -> None:
        """End the process as the received signal would have. Without a signal, do nothing."""
        if self.signal is not None:
            raise _departure(self.signal)


def _departure(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
