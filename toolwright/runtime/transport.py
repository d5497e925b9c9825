"""Trajectories as few, large, columnar objects: what crosses between roles, and what the driver sees of it.

A parcel holds many trajectories end to end, in arrays that a receiver on the same node reads where they lie.
The driver is told of each trajectory what it decides by; tokens and text stay in the parcel until read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, cast, get_args

import numpy as np

from toolwright.trajectory import Failure, Segment, Source, Task, Trajectory

SOURCES = get_args(Source)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class TrajectoryTable:
    """Many trajectories. `facts` is JSON: the tasks, and of each attempt all that is not a column."""

    tokens: Array  # [tokens] int32
    log_probs: Array  # [sampled tokens] float32; float64 where that would lose something
    text: Array  # [bytes] uint8, UTF-8
    segments: Array  # [segments, 3] int32: source, tokens, bytes of text
    facts: Array  # [bytes] uint8

    @property
    def nbytes(self) -> int:
        columns = (self.tokens, self.log_probs, self.text, self.segments, self.facts)
        return sum(column.nbytes for column in columns)


@dataclass(frozen=True)
class AttemptSummary:
    """What the driver is told of one attempt: enough to select, count and measure by."""

    stop: str
    counts: dict[str, float]
    timings: dict[str, float]
    weights_version: int
    failure: tuple[str, str] | None
    sampled_tokens: int
    turns: int

    @classmethod
    def of(cls, t: Trajectory) -> AttemptSummary:
        failure = (t.failure.kind, t.failure.message) if t.failure else None
        return cls(t.stop, t.counts, t.timings, t.weights_version, failure, t.sampled_tokens, t.turns)


class TrajectoryRef:
    """A parcel that lies elsewhere. `ref` is what the runtime calls it; it is fetched when first opened."""

    def __init__(self, ref: Any, fetch: Callable[[Any], TrajectoryTable], *, asked: Any = None) -> None:
        """`asked` is what it answers, so that it can be asked for again if it is lost."""
        self.ref, self._fetch, self.asked = ref, fetch, asked
        self.rows: list[RemoteTrajectory] = []

    @cached_property
    def parcel(self) -> TrajectoryTable:
        return self._fetch(self.ref)


class RemoteTrajectory(Trajectory):
    """A trajectory whose tokens stayed in its parcel; whoever reads its segments has them fetched."""

    def __init__(
        self,
        task: Task,
        *,
        group: str,
        index: int,
        seed: int,
        told: AttemptSummary,
        shipment: TrajectoryRef,
        row: int,
    ) -> None:
        self.task, self.group, self.index, self.seed = task, group, index, seed
        self.reward, self.reward_parts = None, {}
        self.stop, self.counts, self.timings = told.stop, told.counts, told.timings
        self.weights_version = told.weights_version
        self.failure = Failure(cast(Any, told.failure[0]), told.failure[1]) if told.failure else None
        self.shipment, self.row, self._told = shipment, row, told
        shipment.rows.append(self)

    def moved_to(self, other: RemoteTrajectory) -> None:
        """The same attempt lies in another parcel now: its first was lost."""
        self.shipment, self.row, self._told = other.shipment, other.row, other._told

    @cached_property
    def segments(self) -> list[Segment]:  # type: ignore[override]
        return unpack(self.shipment.parcel, [self.row])[0].segments

    @property
    def sampled_tokens(self) -> int:
        return self._told.sampled_tokens

    @property
    def turns(self) -> int:
        return self._told.turns


def pack(trajectories: Sequence[Trajectory]) -> TrajectoryTable:
    tasks: dict[int, int] = {}
    distinct: list[Task] = []
    rows, extras = [], {}
    tokens: list[int] = []
    log_probs: list[float] = []
    texts: list[bytes] = []
    segments: list[tuple[int, int, int]] = []
    for t in trajectories:
        if id(t.task) not in tasks:
            tasks[id(t.task)] = len(distinct)
            distinct.append(t.task)
        for segment in t.segments:
            if segment.reward is not None or segment.anchor is not None or segment.calls:
                extras[len(segments)] = [segment.reward, segment.anchor, segment.calls]
            text = segment.text.encode("utf-8", "surrogatepass")
            segments.append((SOURCES.index(segment.source), len(segment.tokens), len(text)))
            tokens.extend(segment.tokens)
            log_probs.extend(segment.log_probs)
            texts.append(text)
        rows.append(_facts(t, task=tasks[id(t.task)]))
    facts = {"tasks": [vars(task) for task in distinct], "attempts": rows, "extras": extras}
    return TrajectoryTable(
        tokens=np.array(tokens, dtype=np.int32),
        log_probs=_narrow(np.array(log_probs, dtype=np.float64)),
        text=np.frombuffer(b"".join(texts), dtype=np.uint8),
        segments=np.array(segments, dtype=np.int32).reshape(-1, 3),
        facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8),
    )


def unpack(parcel: TrajectoryTable, rows: Iterable[int] | None = None) -> list[Trajectory]:
    """The trajectories, or those of these rows in this order, as they were packed."""
    facts = json.loads(parcel.facts.tobytes())
    tasks = [Task(**task) for task in facts["tasks"]]
    attempts = facts["attempts"]
    sources, lengths, text_lengths = (parcel.segments[:, i].tolist() for i in range(3))
    policy = SOURCES.index("policy")
    sampled = [n if s == policy else 0 for s, n in zip(sources, lengths, strict=True)]
    starts = [list(accumulate(column, initial=0)) for column in (lengths, sampled, text_lengths)]
    firsts = list(accumulate((fact["segments"] for fact in attempts), initial=0))
    text = memoryview(parcel.text.data)

    def segment(i: int) -> Segment:
        token, log_prob, byte = (start[i] for start in starts)
        reward, anchor, calls = facts["extras"].get(str(i), (None, None, []))
        return Segment(
            source=SOURCES[sources[i]],
            tokens=parcel.tokens[token : token + lengths[i]].tolist(),
            log_probs=parcel.log_probs[log_prob : log_prob + sampled[i]].tolist(),
            text=str(text[byte : byte + text_lengths[i]], "utf-8", "surrogatepass"),
            reward=reward,
            anchor=anchor,
            calls=calls,
        )

    made = []
    for row in range(len(attempts)) if rows is None else rows:
        known = dict(attempts[row])
        known.pop("segments")
        known["failure"] = Failure(*known["failure"]) if known["failure"] else None
        known["task"] = tasks[known["task"]]
        known["segments"] = [segment(i) for i in range(firsts[row], firsts[row + 1])]
        made.append(Trajectory(**known))
    return made


def _facts(t: Trajectory, *, task: int) -> dict[str, Any]:
    return {
        "task": task,
        "group": t.group,
        "index": t.index,
        "seed": t.seed,
        "segments": len(t.segments),
        "reward": t.reward,
        "reward_parts": t.reward_parts,
        "stop": t.stop,
        "counts": t.counts,
        "timings": t.timings,
        "weights_version": t.weights_version,
        "failure": [t.failure.kind, t.failure.message] if t.failure else None,
    }


def _narrow(values: Array) -> Array:
    """Engines compute in float32; what one measured more finely is kept as it is."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    return narrow if np.array_equal(narrow.astype(np.float64), values, equal_nan=True) else values
