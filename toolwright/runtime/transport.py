"""Attempts between processes: their records stay in the object store, and the driver has a summary of each.

A rollout worker puts the attempts of one call into the store as one table (`record.to_table`). Receivers on
the same node read it in place. The driver fetches a table only if it reads tokens or text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from toolwright import record
from toolwright.trajectory import Segment, Task, Trajectory

# Properties of a trajectory that follow from its segments.
COUNTED = ("sampled_tokens", "prompt_tokens", "given_tokens", "turns")
# Every field of a trajectory but the task, which the driver has, and the segments, which stay in the store.
SUMMARY = ["failure", *(column.field for column in record.COLUMNS[Trajectory]), *COUNTED]


def summary_of(t: Trajectory) -> tuple[Any, ...]:
    """Summarise an attempt for the driver, in the order of `SUMMARY`: enough to select, count and measure it.
    It is a plain tuple, because the driver unpickles one for each attempt."""
    return tuple([getattr(t, name) for name in SUMMARY])


class TrajectoryRef:
    """A table of trajectories in the object store, fetched when it is first read."""

    def __init__(self, object_ref: Any, fetch: Callable[[Any], pa.Table], *, request: Any = None) -> None:
        """`request` is the call that it answers, so that it can be repeated if the table is lost."""
        self.object_ref, self._fetch, self.request = object_ref, fetch, request
        self.rows: list[RemoteTrajectory] = []

    @cached_property
    def table(self) -> pa.Table:
        return self._fetch(self.object_ref)


# Assigns attribute by attribute, as a dataclass does, which takes a third of the time of filling `__dict__`:
# the driver makes one for each attempt.
_assign: Any = vars(make_dataclass("RemoteFields", ["task", "ref", "row", *SUMMARY]))["__init__"]


class RemoteTrajectory(Trajectory):
    """A trajectory whose segments are in the object store. Reading them fetches its table."""

    ref: TrajectoryRef
    row: int
    # Known from the summary: plain attributes in place of properties that would read the segments.
    sampled_tokens: int = 0
    prompt_tokens: int = 0
    given_tokens: int = 0
    turns: int = 0

    def __init__(self, task: Task, summary: Sequence[Any], *, ref: TrajectoryRef, row: int) -> None:
        _assign(self, task, ref, row, *summary)
        ref.rows.append(self)

    def move_to(self, other: RemoteTrajectory) -> None:
        """Point to where the same attempt lies now; a table may be lost with its node."""
        self.ref, self.row = other.ref, other.row
        self.__dict__.update({name: getattr(other, name) for name in COUNTED})
        self.ref.rows.append(self)

    @cached_property
    def segments(self) -> list[Segment]:  # type: ignore[override]
        return record.read_segments(_segment_lists(self.ref, [self.row]))[0]


def save(path: Path, trajectories: Sequence[Trajectory], values: Sequence[record.TokenValues] = ()) -> None:
    """Save like `record.save`, if some trajectories are remote: their segments are copied column by
    column."""
    remote: dict[TrajectoryRef, list[tuple[int, int]]] = {}  # (row, place in `trajectories`)
    here: list[tuple[int, Trajectory]] = []
    for place, t in enumerate(trajectories):
        if isinstance(t, RemoteTrajectory):
            remote.setdefault(t.ref, []).append((t.row, place))
        else:
            here.append((place, t))
    kind = record.SCHEMA.field("segments").type
    parts = [_segment_lists(ref, [row for row, _ in rows]).cast(kind) for ref, rows in remote.items()]
    parts.append(record.segment_lists([t for _, t in here]).cast(kind))
    places = [place for rows in remote.values() for _, place in rows] + [place for place, _ in here]
    order = sorted(range(len(places)), key=places.__getitem__)
    segments = pa.concat_arrays(parts).take(pa.array(order, pa.int64()))
    record.save(path, trajectories, values, segments=segments)


def _segment_lists(ref: TrajectoryRef, rows: Sequence[int]) -> pa.Array:
    return ref.table["segments"].chunk(0).take(pa.array(rows, pa.int64()))
