"""Task, Segment, Trajectory, Group: the nouns everyone shares, and their Parquet form."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Source = Literal["prompt", "policy", "tool", "environment"]
FailureKind = Literal["infrastructure", "task"]


@dataclass(frozen=True)
class Task:
    """One thing to attempt. Everything in it is JSON, so that it travels and is kept as it is."""

    id: str
    prompt: list[dict[str, Any]]
    ground_truth: Any = None
    data_source: str = ""
    extra_info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Segment:
    """A run of tokens from one source. A `policy` segment is one step: what the policy did in one state."""

    source: Source
    tokens: list[int]
    log_probs: list[float] = field(default_factory=list)  # one a token where the policy sampled, else none
    text: str = ""
    reward: float | None = None  # what the environment gave for this step
    anchor: str | None = None  # the state this step was taken in; GiGPO compares steps of equal anchor
    calls: list[dict[str, Any]] = field(
        default_factory=list
    )  # that this answers: name, arguments, seconds, …


@dataclass(frozen=True)
class Failure:
    """Why an attempt cannot be learned from."""

    kind: FailureKind
    message: str


@dataclass
class Trajectory:
    """One attempt: the exact tokens, who produced each, and all that is known about how it went."""

    task: Task
    group: str
    index: int = 0  # which attempt of its group
    seed: int = 0
    segments: list[Segment] = field(default_factory=list)
    reward: float | None = None
    reward_parts: dict[str, float] = field(default_factory=dict)
    stop: str = ""  # what ended it: eos, stop, length, turns, done, …
    counts: dict[str, float] = field(default_factory=dict)  # tool_calls, tool_errors, format_faults, …
    timings: dict[str, float] = field(default_factory=dict)  # seconds by stage
    weights_version: int = 0
    failure: Failure | None = None

    def append(self, segment: Segment) -> None:
        """The only way a trajectory changes: it grows. Tokens already there are never touched."""
        sampled = segment.source == "policy"
        if sampled and len(segment.log_probs) != len(segment.tokens):
            raise ValueError(
                f"a policy segment needs one log-probability a token: "
                f"{len(segment.tokens)} tokens, {len(segment.log_probs)} log-probabilities"
            )
        if not sampled and segment.log_probs:
            raise ValueError(f"a {segment.source} segment was not sampled and has no log-probabilities")
        self.segments.append(segment)

    @property
    def tokens(self) -> list[int]:
        return [token for segment in self.segments for token in segment.tokens]

    @property
    def mask(self) -> list[bool]:
        """True where the policy sampled the token."""
        return [segment.source == "policy" for segment in self.segments for _ in segment.tokens]

    @property
    def steps(self) -> list[Segment]:
        return [segment for segment in self.segments if segment.source == "policy"]

    @property
    def cut(self) -> bool:
        """Whether a limit of tokens ended it: of the turn, or of the whole attempt."""
        return self.stop in ("length", "tokens")

    @property
    def turns(self) -> int:
        return len(self.steps)

    @property
    def response(self) -> str:
        """Everything after the prompt, as text, for scorers and readers."""
        return "".join(segment.text for segment in self.segments if segment.source != "prompt")

    @property
    def sampled_tokens(self) -> int:
        return sum(len(step.tokens) for step in self.steps)


@dataclass
class Group:
    """The attempts at one task that are compared with each other; whole, or not used."""

    task: Task
    trajectories: list[Trajectory]

    @property
    def failures(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.failure is not None]

    @property
    def complete(self) -> bool:
        return bool(self.trajectories) and not self.failures

    @property
    def rewards(self) -> list[float]:
        return [t.reward for t in self.trajectories if t.reward is not None]


def save(path: Path, trajectories: Sequence[Trajectory]) -> None:
    """One Parquet file, columnar, written whole or not at all."""
    import pyarrow as pa

    write_table(path, pa.Table.from_pylist([to_row(t) for t in trajectories], schema=parquet_schema()))


def write_table(path: Path, table: Any) -> None:
    """Of `parquet_schema`, written whole or not at all."""
    import pyarrow.parquet as pq

    partial = path.with_suffix(".partial")
    try:
        # What repeats is left to the compression: a step is too few rows for dictionaries and statistics.
        pq.write_table(table, partial, compression="zstd", use_dictionary=False, write_statistics=False)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    os.replace(partial, path)


def load(path: Path) -> list[Trajectory]:
    import pyarrow.parquet as pq

    return [_from_row(row) for row in pq.read_table(path).to_pylist()]


Arrived = Callable[[Sequence[Trajectory]], None]  # hears of attempts as they come in


def unheard(trajectories: Sequence[Trajectory]) -> None:
    """For whoever asks for attempts and waits for all of them."""


def as_groups(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Trajectories gathered by their group, both in order of first appearance."""
    groups: dict[str, Group] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.group, Group(trajectory.task, [])).trajectories.append(trajectory)
    return list(groups.values())


JSON_COLUMNS = ("prompt", "ground_truth", "extra_info", "reward_parts", "counts", "timings")


def parquet_schema() -> Any:
    import pyarrow as pa

    segment = pa.struct(
        {
            "source": pa.string(),
            "tokens": pa.list_(pa.int32()),
            "log_probs": pa.list_(pa.float64()),
            "text": pa.string(),
            "reward": pa.float64(),
            "anchor": pa.string(),
            "calls": pa.string(),
        }
    )
    plain = {
        "task_id": pa.string(),
        "data_source": pa.string(),
        "group": pa.string(),
        "index": pa.int32(),
        "seed": pa.int64(),
        "reward": pa.float64(),
        "stop": pa.string(),
        "weights_version": pa.int64(),
        "failure_kind": pa.string(),
        "failure_message": pa.string(),
        "response": pa.string(),
    }
    return pa.schema({**plain, **{name: pa.string() for name in JSON_COLUMNS}, "segments": pa.list_(segment)})


def told_of(t: Trajectory) -> dict[str, Any]:
    """The columns that are plain values, and need none of its tokens."""
    return {
        "task_id": t.task.id,
        "data_source": t.task.data_source,
        "group": t.group,
        "index": t.index,
        "seed": t.seed,
        "reward": t.reward,
        "stop": t.stop,
        "weights_version": t.weights_version,
        "failure_kind": t.failure.kind if t.failure else None,
        "failure_message": t.failure.message if t.failure else None,
    }


def to_row(t: Trajectory) -> dict[str, Any]:
    values = {
        "prompt": t.task.prompt,
        "ground_truth": t.task.ground_truth,
        "extra_info": t.task.extra_info,
        "reward_parts": t.reward_parts,
        "counts": t.counts,
        "timings": t.timings,
    }
    return {
        **told_of(t),
        "response": t.response,
        **{name: json.dumps(value, ensure_ascii=False) for name, value in values.items()},
        "segments": [
            {**vars(segment), "calls": json.dumps(segment.calls, ensure_ascii=False)}
            for segment in t.segments
        ],
    }


def _from_row(row: dict[str, Any]) -> Trajectory:
    values = {name: json.loads(row[name]) for name in JSON_COLUMNS}
    kind = row["failure_kind"]
    return Trajectory(
        task=Task(
            id=row["task_id"],
            prompt=values["prompt"],
            ground_truth=values["ground_truth"],
            data_source=row["data_source"],
            extra_info=values["extra_info"],
        ),
        group=row["group"],
        index=row["index"],
        seed=row["seed"],
        segments=[
            Segment(**{**segment, "calls": json.loads(segment.get("calls") or "[]")})
            for segment in row["segments"]
        ],
        reward=row["reward"],
        reward_parts=values["reward_parts"],
        stop=row["stop"],
        counts=values["counts"],
        timings=values["timings"],
        weights_version=row["weights_version"],
        failure=Failure(kind, row["failure_message"]) if kind else None,
    )
