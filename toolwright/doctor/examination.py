"""Runs checks: each within a time of its own, and none of them can end the command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any

from toolwright.doctor.checks import Check, in_order
from toolwright.doctor.result import CheckResult, warning
from toolwright.registry import Entry

LIMIT_S = 10.0
TORCH_S = 120.0  # the first import from a cold or distant disk is slow, and yet no fault


@dataclass(frozen=True)
class CheckReport:
    """A check that was made."""

    name: str
    result: CheckResult
    seconds: float

    def as_row(self) -> dict[str, Any]:
        return {"name": self.name, **asdict(self.result), "seconds": round(self.seconds, 3)}


def examine(checks: Sequence[Entry[Check]] | None = None) -> Iterator[CheckReport]:
    """Every check in order, each as soon as it and those before it are done."""
    entries = in_order() if checks is None else checks
    waiting = {entry.name: _start(entry) for entry in entries if "network" in entry.needs}
    for entry in entries:
        yield (waiting.get(entry.name) or _start(entry))()


def _start(entry: Entry[Check]) -> Callable[[], CheckReport]:
    """Begin a check in a thread, which cannot be killed but can be left behind. Returns what waits for it."""
    answers: SimpleQueue[tuple[CheckResult, float]] = SimpleQueue()
    begun = time.monotonic()

    def work() -> None:
        try:
            result = entry.target()
        except BaseException as error:  # whatever a check runs into is about the machine, and worth a line
            why = " ".join(str(error).split()) or "no message"
            result = warning(f"could not be checked: {type(error).__name__}: {why}")
        answers.put((result, time.monotonic() - begun))

    threading.Thread(target=work, name=f"check {entry.name}", daemon=True).start()
    limit = TORCH_S if "torch" in entry.needs else LIMIT_S

    def finish() -> CheckReport:
        left = max(0.0, begun + limit - time.monotonic())
        try:
            result, seconds = answers.get(timeout=left) if left else answers.get_nowait()
        except Empty:
            result = warning(
                f"no answer within {limit:g} s", "find out what it waits for: a disk, a driver, a name server"
            )
            seconds = limit
        return CheckReport(entry.name, result, seconds)

    return finish
