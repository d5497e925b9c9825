"""Trajectories as columns: nothing is lost on the way, and nothing is fetched that nobody reads."""

from __future__ import annotations

import random
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.record import from_table, load, save, to_table
from toolwright.runtime import transport
from toolwright.runtime.transport import RemoteTrajectory, TrajectoryRef, summary_of
from toolwright.trajectory import Failure, Segment, Source, Task, Trajectory

finite = st.floats(allow_nan=False, allow_infinity=False)
tokens = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@st.composite
def segments(draw: Any) -> Segment:
    source = draw(st.sampled_from(get_args(Source)))
    drawn = draw(tokens)
    log_probs = [draw(finite) for _ in drawn] if source == "policy" else []
    return Segment(
        source,
        drawn,
        log_probs,
        text=draw(st.text(max_size=8)),
        reward=draw(st.none() | finite),
        anchor=draw(st.none() | st.text(max_size=4)),
        calls=draw(st.lists(st.just({"name": "echo", "seconds": 0.5}), max_size=2)),
    )


@st.composite
def trajectories(draw: Any) -> Trajectory:
    task = Task(draw(st.text(max_size=4)), [{"role": "user", "content": draw(st.text(max_size=4))}], 7)
    failure = draw(st.none() | st.just(Failure("task", "no")))
    made = Trajectory(task, "1.0.0", index=draw(st.integers(0, 9)), seed=draw(st.integers(0, 2**62)))
    made.reward, made.failure = draw(st.none() | finite), failure
    made.segments = draw(st.lists(segments(), max_size=4))
    made.counts, made.stop = {"tool_calls": 2}, "eos"
    return made


@given(st.lists(trajectories(), max_size=4))
@settings(max_examples=60, deadline=None)
def test_trajectories_read_from_a_table_equal_those_written_to_it(made: list[Trajectory]) -> None:
    table = to_table(made)
    assert from_table(table) == made
    chosen = list(range(len(made)))[::-2]
    assert from_table(table, chosen) == [made[row] for row in chosen]


def attempts(count: int = 6, length: int = 40) -> list[Trajectory]:
    draw = random.Random(0)
    made = []
    for i in range(count):
        task = Task(f"t{i // 2}", [{"role": "user", "content": "ü?"}], ground_truth=[1])
        t = Trajectory(task, f"g{i // 2}", index=i % 2, seed=i)
        t.append(Segment("prompt", [1, 2, 3], text="ü?"))
        drawn = [float(np.float32(draw.uniform(-9, 0))) for _ in range(length)]
        t.append(Segment("policy", [draw.randrange(9) for _ in drawn], drawn, text="said", anchor="s"))
        t.append(Segment("tool", [5], text="done", calls=[{"name": "echo"}]))
        t.counts, t.timings, t.stop = {"tool_calls": 1}, {"attempt_s": 0.5}, "eos"
        made.append(t)
    return made


def remote(made: list[Trajectory], ref: TrajectoryRef) -> list[RemoteTrajectory]:
    return [RemoteTrajectory(t.task, summary_of(t), ref=ref, row=row) for row, t in enumerate(made)]


def test_the_driver_counts_and_selects_without_fetching() -> None:
    def never(ref: Any) -> pa.Table:
        raise AssertionError("fetched")

    made = attempts()
    for mine, seen in zip(made, remote(made, TrajectoryRef("ref", never)), strict=True):
        for name in ("sampled_tokens", "turns", "stop", "counts", "timings", "failure", "weights_version"):
            assert getattr(seen, name) == getattr(mine, name)


def test_segments_are_fetched_when_they_are_read() -> None:
    made = attempts()
    table = to_table(made)
    seen = remote(made, TrajectoryRef("ref", lambda ref: table))
    assert [t.segments for t in seen] == [t.segments for t in made]
    assert seen[0].response == made[0].response


def test_a_step_is_recorded_as_a_process_alone_would(tmp_path: Path) -> None:
    made = attempts()
    tables = [to_table(made[:4]), to_table(made[4:])]
    seen: list[Trajectory] = []
    for part, table in zip((made[:4], made[4:]), tables, strict=True):
        seen += remote(part, TrajectoryRef("ref", lambda ref, table=table: table))
    lost = Trajectory(Task("x", []), "g9", failure=Failure("task", "in quarantine"))
    for t in (made, seen):
        t[0].reward, t[0].reward_parts, t[1].failure = 1.0, {"acc": 1.0}, Failure("task", "no")
    order = [5, 0, 3, 1, 4, 2]
    save(tmp_path / "here", [lost, *(made[i] for i in order)])
    transport.save(tmp_path / "there", [lost, *(seen[i] for i in order)])
    here, there = load(tmp_path / "here"), load(tmp_path / "there")
    for mine, theirs in zip(here, there, strict=True):
        for field in fields(Trajectory):
            assert getattr(mine, field.name) == getattr(theirs, field.name), field.name


def test_a_table_is_at_most_1_3_times_its_payload() -> None:
    made = attempts(count=64, length=1000)
    payload = sum(4 * len(t.tokens) + 4 * t.sampled_tokens + len(t.response.encode()) for t in made)
    assert to_table(made).nbytes <= 1.3 * payload
