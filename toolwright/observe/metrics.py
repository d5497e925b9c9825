"""metrics.jsonl: one line for each step, written when the step ends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from toolwright.failures import UserError

Value = float | int | str
Row = dict[str, Any]


class Metrics:
    """Appends to a run's metrics. The file is opened for each line, so there is nothing to close."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _mend(self.path)

    def append(self, step: int, values: Mapping[str, Value]) -> None:
        """Write a line. A value that is not finite becomes null, and its key is listed under `nonfinite`."""
        plain = {key: _plain(value) for key, value in values.items()}
        nonfinite = [k for k, v in plain.items() if isinstance(v, float) and not math.isfinite(v)]
        row: Row = {"step": step, **plain, **dict.fromkeys(nonfinite)} | {"step": step}
        if nonfinite:
            row["nonfinite"] = nonfinite
        line = json.dumps(row, ensure_ascii=False, allow_nan=False)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    @staticmethod
    def read(path: Path) -> list[Row]:
        """Every complete line. A crash may cut off the last one, which is then left out."""
        return [row for _, row in _lines(Path(path))]

    @staticmethod
    def truncate(path: Path, after_step: int) -> None:
        """Remove the steps after a checkpoint, before the resumed run writes them again."""
        path = Path(path)
        if path.exists():
            _replace(path, (line for line, row in _lines(path) if row.get("step", 0) <= after_step))


def series(rows: Iterable[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """(step, value) by step, for finite values only. If a step was written twice, the last value counts."""
    points: dict[int, float] = {}
    for row in rows:
        value = row.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            points[int(row.get("step", 0))] = float(value)
    return sorted(points.items())


def whole_rows(text: str) -> list[Row]:
    """The objects of a file that has one a line. A line that a crash has torn is left out, and so are
    brackets around all of them."""
    found = []
    for line in text.split("\n"):
        try:
            row = json.loads(line.strip().rstrip(","))
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            found.append(row)
    return found


def _plain(value: Any) -> Value | None:
    """Convert scalars of torch and numpy, which `json` cannot write."""
    if value is None or isinstance(value, str | int | float):
        return value
    return float(value)


def _lines(path: Path) -> list[tuple[str, Row]]:
    if not path.exists():
        return []
    # Only "\n" ends a line: splitlines() would also cut at separators that a text may hold.
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    last = max((number for number, line in enumerate(lines) if line.strip()), default=-1)
    found = []
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
        except ValueError as error:
            if number == last:
                break
            raise UserError(f"{path}, line {number + 1} is not a line of metrics: {error}") from error
        found.append((line, row))
    return found


def _mend(path: Path) -> None:
    """Remove a cut-off last line: the next line would be appended to it."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        whole = file.read(1) == b"\n"
    if not whole:
        _replace(path, (line for line, _ in _lines(path)))


def _replace(path: Path, lines: Iterable[str]) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
