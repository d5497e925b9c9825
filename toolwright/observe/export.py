"""Attempts as files for people and programs: a dialogue in Markdown, or JSON lines."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from toolwright.config.keys import mapped
from toolwright.failures import UserError
from toolwright.observe import attempt, rollouts
from toolwright.observe.attempt import visible
from toolwright.observe.attempt_index import AttemptTable
from toolwright.observe.numbers import compact, duration
from toolwright.trajectory import Trajectory

Array = np.ndarray[Any, Any]
AT_ONCE = 64  # attempts read together
FORMATS = (".md", ".jsonl")
ASKS = {"user", "environment"}
ANSWERS = {"assistant", "policy"}


@dataclass(frozen=True)
class ExportedAttempt:
    """An attempt and its step. `time` is when the step was written."""

    step: int
    trajectory: Trajectory
    time: float | None = None


def selected(table: AttemptTable, places: Array) -> Iterator[ExportedAttempt]:
    """Yield the attempts at these places of the table, in this order, loading only a few at a time."""
    steps, rows = table.step[places].tolist(), table.row[places].tolist()
    for step, run in groupby(zip(steps, rows, strict=True), key=itemgetter(0)):
        path = table.path(step)
        if path is None:
            raise UserError(f"the attempts of step {step} no longer exist")
        mine = [row for _, row in run]
        for start in range(0, len(mine), AT_ONCE):
            for trajectory in rollouts.read(path, mine[start : start + AT_ONCE]):
                yield ExportedAttempt(step, trajectory, path.stat().st_mtime)


def write_export(path: Path, title: str, attempts: Iterable[ExportedAttempt]) -> int:
    """Write the file that its ending asks for, attempt by attempt, and return their number."""
    if path.suffix not in FORMATS:
        raise UserError(f"{path}: attempts are exported as FILE.md (Markdown) or FILE.jsonl (JSON lines)")
    count = 0
    try:
        with path.open("w", encoding="utf-8") as file:
            if path.suffix == ".md":
                file.write(markdown_head(title))
            for count, one in enumerate(attempts, start=1):
                file.write(to_markdown(one, count) if path.suffix == ".md" else to_json_line(one))
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def print_json_lines(attempts: Iterable[ExportedAttempt]) -> None:
    for one in attempts:
        sys.stdout.write(to_json_line(one))


def to_json_line(one: ExportedAttempt) -> str:
    """Every field as it was recorded. Only ASCII: a terminal has nothing to obey in it."""
    record = {"step": one.step, "time": one.time, **asdict(one.trajectory)}
    try:
        return json.dumps(record, allow_nan=False) + "\n"
    except ValueError:  # JSON has no numbers that are not finite
        finite = mapped(record, lambda v: None if isinstance(v, float) and not math.isfinite(v) else v)
        return json.dumps(finite) + "\n"


def markdown_head(title: str) -> str:
    return f"# {_code(title)}\n\nExported {_time(time.time())} by Toolwright.\n"


def to_markdown(one: ExportedAttempt, number: int) -> str:
    """The dialogue: numbered questions and answers, calls of tools with their results between them."""
    t = one.trajectory
    reward = "no reward" if t.reward is None else f"reward {compact(t.reward)}"
    facts = [f"step {one.step}", *([_time(one.time)] if one.time else []), *attempt.facts(t)]
    if "attempt_s" in t.timings:
        facts.append(duration(t.timings["attempt_s"]))
    lines = [f"\n---\n\n## {number}. {_code(t.group)}, attempt {t.index}: {reward}\n", _list(facts)]
    if t.reward_parts:
        lines.append(_list([f"{name} {compact(value)}" for name, value in t.reward_parts.items()]))
    lines += _dialogue(t)
    if t.failure is not None:
        lines.append(f"### Failure: {t.failure.kind}\n\n{_fence(t.failure.message)}")
    if t.task.ground_truth is not None:
        lines.append(f"### Ground truth\n\n{_fence(attempt.ground_truth(t.task))}")
    return "\n".join(lines)


def _dialogue(t: Trajectory) -> Iterator[str]:
    asked = answered = 0
    for role, text in attempt.messages(t):
        asked += role in ASKS
        answered += role in ANSWERS
        yield f"### {_heading(role, asked, answered)}\n\n{_fence(text)}"
    for one in attempt.segments(t):
        segment = one.segment
        asked += segment.source in ASKS
        answered += segment.source in ANSWERS
        for call in attempt.calls(segment):
            yield f"**Tool call** {_code(call.line)}\n"
        note = f" ({one.note})" if one.note else ""
        heading = _heading(segment.source, asked, answered)
        yield f"### {heading}{note}\n\n{_fence(attempt.segment_text(segment))}"


def _heading(role: str, asked: int, answered: int) -> str:
    if role in ASKS:
        return f"Question {asked}" if role == "user" else f"Question {asked} (environment)"
    if role in ANSWERS:
        return f"Answer {answered}"
    return {"tool": "Tool result", "system": "System"}.get(role) or _code(role)


def _fence(text: str) -> str:
    """A block of code that nothing in the text can end: its fence is longer than any in it."""
    text = visible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text.rstrip()}\n{fence}\n"


def _code(text: str) -> str:
    """A piece of code within a line."""
    line = " ".join(visible(text).split()) or " "
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    return f"{marks} {line} {marks}" if "`" in line else f"`{line}`"


def _list(facts: Iterable[str]) -> str:
    return f"- {_code(' · '.join(facts))}\n"


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
