"""The metrics of a run as columns, read on as metrics.jsonl grows."""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Sequence
from pathlib import Path

import orjson

from toolwright.ui.growing_file import GrowingFile

STEP, TIME, TOKENS = "step", "time", "tokens"
AXES = (STEP, TIME, TOKENS)
NAN = math.nan
Column = Sequence[float | None]


class MetricsTable:
    """One array of floats for each metric; NaN where a row has no value. A torn or odd line is left out."""

    def __init__(self) -> None:
        self._file = GrowingFile()
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self.rows = 0
        self.steps = array("q")
        self._time, self._tokens = array("d"), array("d")
        self._values: dict[str, array[float]] = {}
        self.nonfinite: dict[str, list[int]] = {}  # steps in which a metric was not finite

    def read(self, path: Path | None) -> bool:
        """Read what is new in the file. Returns True if anything changed."""
        with self._lock:
            before = self.rows
            again, lines = self._file.new_lines(path)
            if again:
                self._forget()
            for _, line in lines:
                self._take(line)
            return again or self.rows != before

    def _take(self, line: bytes) -> None:
        try:
            row = orjson.loads(line)
            step = int(row["step"])
            self.steps.append(step)
        except (ValueError, TypeError, KeyError, OverflowError):
            return
        for name, value in row.items():
            if name == STEP or not isinstance(value, int | float):
                continue
            if name not in self._values:
                self._values[name] = array("d", [NAN]) * self.rows
            self._values[name].append(value)
        self.rows += 1
        for column in self._values.values():
            if len(column) < self.rows:
                column.append(NAN)
        for name in row.get("nonfinite") or ():
            self.nonfinite.setdefault(str(name), []).append(step)
        self._take_axes(row)

    def _take_axes(self, row: dict[str, object]) -> None:
        """Seconds of training and tokens sampled so far. The rate is of the whole step's time."""
        total = _number(row.get("time/total_s"))
        if total is None:
            total = sum(_number(v) or 0.0 for k, v in row.items() if k.startswith("time/") and k[-2:] == "_s")
        tokens = total * (_number(row.get("throughput/tokens_per_s")) or 0.0)
        so_far = self._time[-1] if self._time else 0.0
        is_search = any(name.endswith("/candidates") for name in row)  # which counts from its start
        self._time.append(max(total, so_far) if is_search else total + so_far)
        self._tokens.append(round(tokens) + (self._tokens[-1] if self._tokens else 0.0))

    @property
    def names(self) -> list[str]:
        return sorted(self._values)

    def column(self, name: str, since: int = 0, until: int | None = None) -> list[float | None]:
        """The values of a metric or an axis, None where there is none."""
        if name == STEP:
            return list(self.steps[since:until])
        values = {TIME: self._time, TOKENS: self._tokens}.get(name, self._values.get(name))
        return [] if values is None else [None if math.isnan(v) else v for v in values[since:until]]

    def columns(self, names: Sequence[str], since: int = 0) -> dict[str, list[float | None]]:
        """The axes and these metrics as columns of one length."""
        with self._lock:
            known = [name for name in names if name in self._values]
            return {name: self.column(name, since, self.rows) for name in (*AXES, *known)}

    def last(self, name: str) -> float | None:
        """The latest value."""
        values = self._values.get(name, ())
        return next((value for value in reversed(values) if not math.isnan(value)), None)

    def points(self, name: str) -> list[tuple[int, float]]:
        """Each step that has a value, with it."""
        values = self._values.get(name, ())
        found = zip(self.steps, values, strict=False)
        return [(step, value) for step, value in found if not math.isnan(value)]

    @property
    def seconds(self) -> float:
        return self._time[-1] if self._time else 0.0


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
