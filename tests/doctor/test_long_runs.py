"""Symptoms that take longer than a test to come about, in folders that say so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolwright.runtime.host import identity

from . import sick
from .sick import found, named, steps, written

TRAINED = {"model": {"path": "some/model"}}


def falling(done: float) -> float:
    return 0.8 if done < 0.5 else 0.2


def test_a_reward_that_collapses_is_reported_with_its_peak(tmp_path: Path) -> None:
    rows = steps(40, reward__mean=falling, reward__min=0, reward__max=1, policy__lr=5e-6)
    (only,) = found(written(tmp_path, rows, **TRAINED))
    assert (only.status, only.name) == ("problem", "reward collapse")
    assert "the reward fell from 0.8 around step" in only.evidence
    assert "update.policy.lr=1e-06 instead of 5e-06" in only.remedy


def test_held_out_that_falls_while_training_rises_is_a_warning(tmp_path: Path) -> None:
    rows = steps(40, reward__mean=lambda done: done, reward__min=0, reward__max=1)
    for row, accuracy in zip(rows[9::10], (0.5, 0.7, 0.5, 0.3), strict=True):
        row.update({"held_out/accuracy": accuracy, "held_out/attempts": 128})
    (only,) = found(written(tmp_path, rows))
    assert (only.status, only.name) == ("warning", "held-out falls")
    assert "fell from 70.0 % in step 20 to 30.0 % in step 40" in only.evidence
    assert "stop around step 20" in only.remedy


def test_a_gap_that_grows_is_reported_with_its_figures(tmp_path: Path) -> None:
    rows = steps(40, reward__mean=0.5, gap__abs_mean=lambda done: 1e-3 + 0.08 * done)
    (only,) = found(written(tmp_path, rows))
    assert (only.status, only.name) == ("problem", "growing gap")
    assert "algorithm.correction.mode=truncate" in only.remedy


def test_a_kl_that_blows_up_is_reported_where_there_is_something_to_stay_close_to(tmp_path: Path) -> None:
    rows = steps(40, reward__mean=0.5, reference__kl=lambda done: 0.01 if done < 0.5 else 4.0)
    (only,) = found(written(tmp_path / "trained", rows, **TRAINED))
    assert (only.name, only.status) == ("KL blow-up", "warning")
    assert "algorithm.kl.coef=0.01 instead of 0.001" in only.remedy
    assert found(written(tmp_path / "random", rows, model={"path": None})) == []


@pytest.mark.parametrize(
    ("calls", "reward", "names"),
    [
        (lambda done: 2.0 if done < 0.3 else 0.0, 0.3, ["tool calls vanish"]),
        (lambda done: 2.0 if done < 0.3 else 0.0, lambda done: done, []),
        (lambda done: 0.155 if done < 0.5 else 0.0, lambda done: 0.18 + 0.16 * done, ["tool calls vanish"]),
        (2.0, 0.3, []),
        (0.0, 0.3, ["no tool calls"]),
    ],
)
def test_tool_calls_that_vanish_are_told_unless_the_task_is_solved(
    calls: Any, reward: Any, names: list[str], tmp_path: Path
) -> None:
    rows = steps(40, attempts__tool_calls=calls, reward__mean=reward, reward__min=0, reward__max=1)
    assert named(written(tmp_path, rows, tools={"python": {}})) == names


@pytest.mark.parametrize(
    ("faults", "names"),
    [(0.6, ["format faults"]), (lambda done: 0.9 * (1 - done), []), (0.05, [])],
)
def test_faults_of_form_are_told_unless_they_are_being_unlearned(
    faults: Any, names: list[str], tmp_path: Path
) -> None:
    rows = steps(40, attempts__format_faults=faults, turns__mean=1.0, reward__mean=0.3, reward__max=1)
    assert named(written(tmp_path, rows)) == names


def test_a_rate_that_is_far_too_high_is_reported_before_it_does_harm(tmp_path: Path) -> None:
    rows = steps(10, reward__mean=0.5, policy__lr=1e-3)
    (only,) = found(written(tmp_path, rows, **TRAINED))
    assert (only.status, only.name) == ("warning", "learning rate too high")
    assert only.remedy == "update.policy.lr=5e-06, or auto"


def test_processes_that_die_are_counted(tmp_path: Path) -> None:
    dead = {
        "who": "rollout-1",
        "role": "rollout",
        "what": "died: out of memory",
        "died": True,
        "resampled": 8,
    }
    incidents = [{"step": step, **dead} for step in (3, 4, 5, 9)]
    (only,) = found(written(tmp_path, steps(10, reward__mean=0.5), incidents=incidents))
    assert (only.status, only.name) == ("problem", "processes died")
    assert "4 in 10 steps, 4 of them rollout; 32 attempts were sampled again" in only.evidence
    assert "engine.slots=32" in only.remedy


def test_a_lack_of_memory_is_reported(tmp_path: Path) -> None:
    line = "2026-01-01 00:00:00 context 512 tokens, for want of memory beside engine.slots=128\n"
    (only,) = found(written(tmp_path, steps(10, reward__mean=0.5), log=line))
    assert (only.status, only.name) == ("warning", "little memory")
    assert only.evidence.startswith("context 512 tokens, for want of memory")


@pytest.mark.parametrize(
    ("stage", "said", "remedy"),
    [
        ("score", "all roles wait for the reward: 60.0 %", "reward.workers"),
        ("checkpoint", "training waits for checkpoints", "checkpoint.minutes=30"),
        ("evaluate", "training waits for evaluations", "eval.every=50"),
    ],
)
def test_a_stage_that_the_others_wait_for_is_named(
    stage: str, said: str, remedy: str, tmp_path: Path
) -> None:
    rows = steps(20, reward__mean=0.5, time__total_s=10.0, **{f"time__{stage}_s": 6.0})
    (only,) = found(written(tmp_path, rows))
    assert said in only.evidence
    assert remedy in only.remedy


def test_a_role_that_stands_idle_is_named_with_the_one_it_waits_for(tmp_path: Path) -> None:
    timeline = [
        {"name": name, "pid": who, "ts": step * 10e6 + start, "dur": takes, "args": {"step": step}}
        for step in range(1, 11)
        for name, who, start, takes in (
            ("rollout.run", "rollout-0", 0, 8e6),
            ("policy.learn", "policy", 8e6, 1.5e6),
        )
    ]
    rows = steps(10, reward__mean=0.5, time__total_s=10.0)
    (only,) = found(written(tmp_path, rows, timeline=timeline, runtime={"name": "ray"}))
    assert only.name == "idle roles"
    assert "policy is busy 15.1 % of a step and waits for rollout-0" in only.evidence
    assert "runtime.placement.rollout.workers" in only.remedy


class TestEndings:
    @pytest.fixture
    def unfinished(self, tmp_path: Path) -> Path:
        return written(tmp_path, steps(10, reward__mean=0.5, time__total_s=2.0), train={"steps": 50})

    def test_a_process_that_is_gone_was_killed(self, unfinished: Path) -> None:
        process = subprocess.Popen(["true"])
        process.wait()
        sick.of_process(unfinished, process.pid, "1")
        (only,) = found(unfinished)
        assert (only.status, only.name) == ("problem", "killed")

    def test_a_process_that_runs_is_not_sick(self, unfinished: Path) -> None:
        sick.of_process(unfinished, os.getpid(), identity().born)
        assert found(unfinished) == []

    def test_a_run_that_writes_nothing_for_long_is_stalled(self, unfinished: Path) -> None:
        sick.of_process(unfinished, os.getpid(), identity().born)
        sick.aged(unfinished, 3600)
        (only,) = found(unfinished)
        assert (only.status, only.name) == ("problem", "stalled")
        assert "nothing was written for 1h 00m after step 10 of 50; a step takes 2.00 s" in only.evidence

    def test_a_run_of_another_machine_may_be_stalled(self, unfinished: Path) -> None:
        (unfinished / "command.txt").write_text("process 12 on another-machine, begun 5\n")
        assert found(unfinished) == []
        sick.aged(unfinished, 3600)
        (only,) = found(unfinished)
        assert (only.status, only.name) == ("warning", "stalled")

    def test_a_run_that_was_stopped_is_not_sick(self, unfinished: Path) -> None:
        sick.of_process(unfinished, 1 << 22, "1")
        with (unfinished / "log.txt").open("a") as file:
            file.write(
                "2026-01-01 00:00:00 run folder x\n2026-01-01 00:00:00 stopped at step 10; continue with: …\n"
            )
        assert found(unfinished) == []

    def test_an_error_counts_until_the_run_is_taken_up_again(self, unfinished: Path) -> None:
        sick.of_process(unfinished, os.getpid(), identity().born)
        error = "Traceback (most recent call last):\n  File …\nRuntimeError: CUDA error: out of memory\n"
        with (unfinished / "log.txt").open("a") as file:
            file.write(f"2026-01-01 00:00:00 the run ended with an error: {error}")
        (only,) = found(unfinished)
        assert only.name == "crashed"
        assert only.evidence.endswith("RuntimeError: CUDA error: out of memory")
        assert "engine.slots=32" in only.remedy
        with (unfinished / "log.txt").open("a") as file:
            file.write("2026-01-01 00:10:00 run folder x\n")
        assert found(unfinished) == []


class TestOtherKinds:
    def test_a_loss_that_rises_is_a_problem_of_sft(self, tmp_path: Path) -> None:
        run = written(tmp_path, steps(40, policy__loss=lambda done: 1 + 5 * done, policy__lr=1e-2))
        (run / "config.yaml").write_text("{optimizer: {}, steps: 40, task: {name: sums}}")
        (only,) = found(run)
        assert only.name == "loss rises"
        assert only.remedy.startswith("optimizer.lr=0.001 instead of 0.01")

    @pytest.mark.parametrize(
        ("config", "command"), [({"optimizer": {}}, "sft"), ({"optimizer": {}, "eval_every": 50}, "rm")]
    )
    def test_the_command_that_continues_a_run_is_its_own(
        self, config: dict[str, Any], command: str, tmp_path: Path
    ) -> None:
        log = "2026-01-01 00:00:00 the run ended with an error: No space left on device\n"
        run = written(tmp_path / "x", steps(4, policy__loss=1.0), log=log)
        (run / "config.yaml").write_text(json.dumps({**config, "steps": 40, "task": {"name": "sums"}}))
        (only,) = found(run)
        assert only.remedy.endswith(f"then toolwright {command} run.name=x run.resume=true")

    def test_preferences_that_are_not_learned_are_reported(self, tmp_path: Path) -> None:
        rows = steps(40, policy__preference_accuracy=0.5, policy__lr=1e-7)
        (only,) = found(written(tmp_path, rows))
        assert only.name == "preferences not learned"

    def test_a_search_whose_runs_fail_is_reported(self, tmp_path: Path) -> None:
        program: dict[str, Any] = {}
        row = {
            "number": 0, "parent": None, "edit": "", "score": 0.0, "sd": 0.0, "mean": 0.0,
            "runs": 20, "cost": 0.0, "prior": 1.0, "failure": "", "failures": {"401: no such key": 15},
            "program": program,
        }  # fmt: skip
        record = {
            "setting": "x", "select": "guided", "budget": 100, "best": 0, "why": "budget",
            "rows": [row], "curve": [], "held_out": {},
        }  # fmt: skip
        (tmp_path / "searches").mkdir()
        (tmp_path / "searches/gsm8k.json").write_text(json.dumps(record))
        (tmp_path / "config.yaml").write_text("{search: {}, executor: {}}")
        (only,) = found(tmp_path)
        assert only.name == "runs of workflows fail"
        assert "gsm8k: 15 of 20 runs failed (75.0 %), 15 with: 401: no such key" in only.evidence


def test_calls_of_tools_that_do_not_exist_are_told_with_those_that_vanish(tmp_path: Path) -> None:
    calls, unknown = (lambda done, top=top: top if done < 0.5 else 0.0 for top in (0.15, 0.1))
    counts = {"attempts__tool_calls": calls, "attempts__tool_calls/unknown": unknown}
    rows = steps(20, **counts, reward__mean=lambda done: 0.2 + 0.1 * done, reward__min=0, reward__max=1)
    (only,) = found(written(tmp_path, rows, tools={"python": {}}))
    assert (only.status, only.name) == ("warning", "tool calls vanish")
    assert "0.15 an attempt at the start, 66.7 % of them of tools that do not exist" in only.evidence
    assert "and the reward rose without them" in only.evidence
    assert "toolwright sft demonstrations=sampled" in only.remedy
