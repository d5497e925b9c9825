"""Stages as they run, and the file that Chrome's tracing opens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolwright.runtime.timeline import Event, Stages, Timeline, use


def event(stage: str = "policy.learn", *, started: float = 1.0) -> Event:
    return Event("policy", stage, started, seconds=2.0, cpu_s=3.0)


def test_the_file_is_whole_after_every_step(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json")
    for step in (1, 2, 3):
        timeline.append(step, [event(), event("reward.score", started=4.0)])
        rows = json.loads(timeline.path.read_text())
        assert [row["args"]["step"] for row in rows] == [s for s in range(1, step + 1) for _ in range(2)]
    assert rows[0]["ph"] == "X"
    assert rows[0]["dur"] == 2_000_000


def test_a_resumed_run_leaves_one_history(tmp_path: Path) -> None:
    timeline = Timeline(tmp_path / "timeline.json")
    for step in (1, 2, 3):
        timeline.append(step, [event()])
    timeline.rewind(1)
    timeline.append(2, [event()])
    assert [row["args"]["step"] for row in json.loads(timeline.path.read_text())] == [1, 2]


def test_a_stage_under_way_is_reported_and_one_that_ended_is_an_event() -> None:
    stages = Stages("policy")
    with stages.stage("learn"), stages.awaiting("reference.statistics"):
        assert [open.stage for open in stages.current] == ["learn"]
        assert stages.awaits == "reference.statistics"
    assert stages.current == []
    assert [done.stage for done in stages.drain()] == ["learn"]
    assert stages.drain() == []


def test_use_is_cores_by_stage() -> None:
    assert use([event(), event()]) == {"use/policy.learn_cores": pytest.approx(1.5)}
