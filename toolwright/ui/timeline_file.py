"""timeline.json by step: where each step's events stand in the file, so that one step is read alone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from toolwright.ui.growing_file import GrowingFile


@dataclass(frozen=True)
class TimelineEvent:
    """One stage of one role."""

    who: str
    stage: str
    step: int
    start: float  # seconds since 1970
    seconds: float
    cpu_s: float

    @property
    def end(self) -> float:
        return self.start + self.seconds


class TimelineFile:
    """Knows which bytes hold which step. A line that cannot be read is left out."""

    def __init__(self) -> None:
        self._file = GrowingFile()
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._places: dict[int, tuple[int, int]] = {}  # step to first and last byte

    @property
    def steps(self) -> list[int]:
        return sorted(self._places)

    def read(self, path: Path | None) -> None:
        with self._lock:
            again, lines = self._file.new_lines(path)
            if again:
                self._places = {}
            self._path = path
            for place, line in lines:
                event = _event(line)
                if event is not None:
                    first, _ = self._places.get(event.step, (place, 0))
                    self._places[event.step] = (first, place + len(line))

    def events(self, steps: Sequence[int], most: int) -> tuple[list[TimelineEvent], bool]:
        """The events of these steps in order of time, and whether there are more than `most`."""
        found: list[TimelineEvent] = []
        wanted = [step for step in steps if step in self._places]
        if self._path is None or not wanted:
            return [], False
        try:
            with self._path.open("rb") as file:
                for step in wanted:
                    first, last = self._places[step]
                    file.seek(first)
                    events = map(_event, file.read(last - first).split(b"\n"))
                    found += [event for event in events if event is not None and event.step == step]
                    if len(found) > most:
                        break
        except OSError:
            return [], False
        return sorted(found[:most], key=lambda event: event.start), len(found) > most


def _event(line: bytes) -> TimelineEvent | None:
    """Read an event. In one process all roles are called `local`, and the stage tells the role."""
    try:
        row = orjson.loads(line.strip().rstrip(b","))
        who = row["cat"] if row["pid"] == "local" else row["pid"]
        return TimelineEvent(
            who=str(who),
            stage=str(row["name"]),
            step=int(row["args"]["step"]),
            start=float(row["ts"]) / 1e6,
            seconds=float(row["dur"]) / 1e6,
            cpu_s=float(row["args"].get("cpu_s", 0.0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
