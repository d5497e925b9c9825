"""Teaching a policy: what it is shown in a world, grouped by the state that was edited."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest

from toolwright.cli import main
from toolwright.workflow.executors import SimulatedExecutor
from toolwright.workflow.policy import EditPolicy, configured
from toolwright.workflow.policy_training import FIRST_WORLD, explored
from toolwright.workflow.pool import ExperiencePool
from toolwright.workflow.proposers import Editor


def test_every_edit_of_a_state_is_tried_and_grouped_by_it() -> None:
    tried = asyncio.run(explored([20_001]))
    assert len({(one.search, one.number) for one in tried}) == len(tried)
    states = {one.anchor for one in tried}
    for anchor in states:
        mine = [one for one in tried if one.anchor == anchor]
        assert len({one.edit for one in mine}) == len({one.child for one in mine}) == len(mine) > 10
        assert len({one.before for one in mine}) == 1
        assert len({one.gain for one in mine}) > 1
    assert tried == asyncio.run(explored([20_001]))


def test_a_policy_is_taught_as_a_user_would_and_is_asked_by_a_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "policy"
    words = ["--warm", "3", "--lessons", "2", "--worlds", "1", "run.threads=1"]
    assert main(["workflow", "policy", str(place), *words]) == 0
    told = capsys.readouterr().out
    assert "lesson 2/2" in told
    assert str(place / "model") in told
    kept = ExperiencePool(place / "pool.db")
    assert kept.settings() == [f"simulated-{FIRST_WORLD + n}/validation" for n in range(2)]
    executor = SimulatedExecutor(seed=1, count=8)
    editor = Editor(executor.operators, executor.prompts, executor.limits)
    tried = kept.of_setting(kept.settings()[0])
    state, edits = tried[0].state, [one.edit for one in tried if one.state == tried[0].state]
    taught, spoken = (
        EditPolicy(configured(place / name, ["run.threads=1"]), editor).chances(state, edits)
        for name in ("model", "warm/model")
    )
    gains = np.array([one.gain for one in tried if one.state == state])
    likelier = taught / spoken
    assert likelier @ gains / likelier.sum() > gains.mean()  # what gained is likelier now
    search = ["workflow", "search", "--config", "quick", f"proposer.path={place / 'model'}", "search.runs=40"]
    small = ["search.tasks=8", "search.held_out=4", "search.guided.first=4", "proposer.samples=4"]
    assert main([*search, *small, f"run.dir={tmp_path}", "run.name=asked"]) == 0
    assert main(["workflow", "policy", str(place)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["workflow", "policy", str(tmp_path / "other"), "--lessons", "0"]) == 2
