"""Trackers are told of a run, and can neither stop nor slow it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.observe.conftest import make_step
from tests.trainer.runs import configured, trained
from toolwright.config.compose import Source, resolve
from toolwright.config.schema import Config, SupervisedConfig
from toolwright.failures import UserError
from toolwright.observe.tracker_config import read_trackers
from toolwright.observe.tracking import QUEUED, Tracking
from toolwright.record import save
from toolwright.trainer import supervised

HERE = Path(__file__).parent
OWN = f"{HERE}/own_trackers.py"


def diary(file: Path, **settings: Any) -> dict[str, Any]:
    return {"diary": {"path": f"{OWN}:Diary", "file": str(file), **settings}}


def entries(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def tracked(
    folder: Path, trackers: dict[str, Any], *, steps: int = 3, after: int = 0, config: Any = None
) -> list[str]:
    """Tell trackers of a run of so many steps. Returns what the run has said."""
    said: list[str] = []
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    tracking = Tracking(
        trackers,
        command="train",
        folder=folder,
        config=config or {"rollout": {"samples": 4}},
        total=after + steps,
        step=after,
        say=said.append,
    )
    with tracking:
        for number in range(after + 1, after + steps + 1):
            save(folder / "rollouts" / f"step_{number:06d}.parquet", make_step(number))
            tracking.step(number, {"reward/mean": number / 10, "policy/loss": float("nan"), "note": "text"})
    return said


def test_a_tracker_is_told_of_run_steps_attempts_and_end(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "diary"
    said = tracked(
        run, diary(file, notes="a note", attempts=2, name="mine"), config={"api_key": "sk-1", "a": 1}
    )
    begin, about, *steps, end = entries(file)
    assert said == []
    assert begin == {"begin": "mine", "id": begin["id"], "resumed": False, "command": "train", "after": 0}
    assert about == {"config": {"api_key": "(hidden)", "a": 1}, "notes": "a note"}
    assert [step["step"] for step in steps] == [1, 2, 3]
    assert steps[0]["metrics"]["reward/mean"] == 0.1
    assert steps[0]["rewards"] == [1.0, None]  # the best and the worst, in the order of the file
    assert end["end"] == "finished"
    assert end["summary"]["held_out_accuracy_before"] == 0.1


def test_a_resumed_run_goes_on_under_its_id(tmp_path: Path) -> None:
    file = tmp_path / "diary"
    tracked(tmp_path / "run", diary(file))
    tracked(tmp_path / "run", diary(file), after=2)
    first, second = (entry for entry in entries(file) if "begin" in entry)
    assert (first["resumed"], second["resumed"], second["after"]) == (False, True, 2)
    assert first["id"] == second["id"]


@pytest.mark.parametrize("at", ["begin", "step", "finish"])
def test_a_run_continues_without_a_hanging_tracker(at: str, tmp_path: Path) -> None:
    hanging = {"path": f"{OWN}:Hanging", "at": at, "timeout_s": 2}
    file, started = tmp_path / "diary", time.monotonic()
    said = tracked(tmp_path / "run", {"stuck": hanging, **diary(file)})
    assert time.monotonic() - started < 60
    assert said[0].startswith("tracker stuck: did not answer within trackers.stuck.timeout_s=2 s")
    assert "the run continues without it" in said[0]
    assert [entry["step"] for entry in entries(file) if "step" in entry] == [1, 2, 3]


def test_a_tracker_that_fails_for_a_while_loses_those_steps_alone(tmp_path: Path) -> None:
    failing = {"flaky": {"path": f"{OWN}:Raising", "steps": 2}}
    said = tracked(tmp_path / "run", failing, steps=4)
    assert said == [
        "tracker flaky: step 1 was not tracked: ConnectionError: the network is down",
        "tracker flaky: 2 of the run's steps were not tracked",
    ]
    assert "Traceback" in (tmp_path / "run/trackers/flaky.log").read_text()


def test_a_tracker_that_fails_five_times_in_a_row_is_left_behind(tmp_path: Path) -> None:
    said = tracked(tmp_path / "run", {"broken": {"path": f"{OWN}:Raising"}}, steps=9)
    assert len(said) == 3
    assert "failed 5 times in a row" in said[1]
    assert said[2] == "tracker broken: 9 of the run's steps were not tracked"


def test_a_run_continues_without_a_tracker_that_dies_or_cannot_be_imported(tmp_path: Path) -> None:
    trackers = {
        "dying": {"path": f"{OWN}:Dying"},
        "broken": {"path": f"{HERE}/broken_tracker.py:Broken"},
        "unknown": {"path": f"{OWN}:Nobody"},
        "wrong": {"path": f"{OWN}:Raising", "colour": "red"},
    }
    said = " ".join(tracked(tmp_path / "run", trackers))
    assert "tracker dying: its process died; the run continues without it" in said
    assert "broken_tracker.py cannot be imported: ModuleNotFoundError: No module named" in said
    assert "tracker unknown: cannot start: UserError" in said
    assert "tracker wrong: cannot start: TypeError" in said


def test_steps_that_a_slow_tracker_has_no_room_for_are_dropped_and_counted(tmp_path: Path) -> None:
    said: list[str] = []
    stuck = {"stuck": {"path": f"{OWN}:Hanging", "at": "begin", "timeout_s": 3}}
    told = {"command": "train", "folder": tmp_path, "config": {}, "total": 1, "say": said.append}
    with Tracking(stuck, **told) as tracking:
        started = time.perf_counter()
        for number in range(QUEUED + 200):
            tracking.step(number, {f"metric/{i}": 1.0 for i in range(60)})
        took_s = time.perf_counter() - started
        assert len(tracking.feeds[0]._waiting) <= QUEUED
    assert said[-1] == f"tracker stuck: {QUEUED + 200} of the run's steps were not tracked"
    assert took_s / (QUEUED + 200) < 0.01  # some 30 µs; the bound is for a busy machine


def test_no_process_of_a_tracker_outlives_its_run(tmp_path: Path) -> None:
    with Tracking(
        {"stuck": {"path": f"{OWN}:Hanging", "at": "finish", "timeout_s": 1}},
        command="train",
        folder=tmp_path,
        config={},
        total=1,
        say=lambda _: None,
    ) as tracking:
        tracking.step(1, {})
    process = tracking.feeds[0]._process
    assert process is not None
    assert process.returncode is not None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trackers=[wandbb]"], r"trackers.wandbb: unknown tracker 'wandbb'; did you mean 'wandb'\?"),
        (["trackers.tensorboard.dirr=x"], r"has no setting trackers.tensorboard.dirr; did you mean 'dir'\?"),
        (["trackers.wandb.mode=nowhere"], r"trackers.wandb.mode='nowhere' does not work"),
        (["trackers.wandb.attempts=-1"], r"trackers.wandb.attempts=-1 does not work"),
        (["trackers.wandb=5"], "trackers.wandb: expected a block of settings, found 5"),
        (["trackers.mine.path=nowhere.py:Mine"], "no such file: .*nowhere.py"),
    ],
)
def test_mistakes_are_answered_before_anything_starts(words: list[str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        read_trackers(configured(*words).trackers)


def test_a_missing_package_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolwright.observe.tracker_config.find_spec", lambda name: None)
    with pytest.raises(
        UserError, match=r"trackers.wandb needs wandb, which is not installed.*toolwright\[trackers\]"
    ):
        read_trackers({"wandb": {}})


def test_trackers_are_named_as_a_list_or_with_settings() -> None:
    words = ["trackers=[tensorboard,trackio]", "trackers.wandb.project=x", "trackers.my.path=a.py:B"]
    config = resolve(Source(), words).config
    assert isinstance(config, Config)
    assert config.trackers == {
        "tensorboard": {},
        "trackio": {},
        "wandb": {"project": "x"},
        "my": {"path": "a.py:B"},
    }
    assert Config.model_validate({"trackers": ["wandb"]}).trackers == {"wandb": {}}


def test_a_run_without_trackers_imports_none() -> None:
    code = (
        "import sys, toolwright.trainer.loop; from toolwright.observe.tracker_config import read_trackers; "
    )
    code += "read_trackers({}); names = {n.partition('.')[0] for n in sys.modules}; "
    code += "assert not names & {'wandb', 'mlflow', 'tensorboard', 'trackio', 'swanlab'}, names; "
    code += "assert 'toolwright.observe.trackers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300, env={**os.environ})


def test_a_whole_run_is_tracked_and_takes_no_notice_of_a_bad_tracker(tmp_path: Path) -> None:
    file = tmp_path / "diary"
    words = [f"trackers.diary.path={OWN}:Diary", f"trackers.diary.file={file}"]
    words += [f"trackers.stuck.path={OWN}:Hanging", "trackers.stuck.at=step", "trackers.stuck.timeout_s=3"]
    run = trained(tmp_path / "runs", "run.name=a", "train.steps=3", *words)
    begin, about, *steps, end = entries(file)
    assert (begin["begin"], begin["command"]) == ("a", "train")
    assert about["config"]["train"]["steps"] == 3
    assert [step["step"] for step in steps] == [0, 1, 2, 3]
    assert all(len(step["rewards"]) == 4 for step in steps[1:])
    assert steps[3]["metrics"]["reward/mean"] is not None
    assert end["report"] == str(run.resolve() / "report.html")
    assert "tracker stuck" in (run / "log.txt").read_text()
    trained(tmp_path / "runs", "run.name=a", "run.resume=true", "train.steps=4", words[0], words[1])
    again = entries(file)[len(steps) + 3 :]
    assert (again[0]["resumed"], again[0]["after"], again[0]["id"]) == (True, 3, begin["id"])
    assert [entry["step"] for entry in again if "step" in entry] == [4]


def test_sft_is_tracked(tmp_path: Path) -> None:
    file = tmp_path / "diary"
    words = ["task=sums", "steps=2", "batch=2", "task.train_size=8", "task.held_out_size=2", "run.threads=1"]
    words += [f"run.dir={tmp_path}", "run.name=warm", "model.layers=1", "model.width=32"]
    words += [f"trackers.diary.path={OWN}:Diary", f"trackers.diary.file={file}"]
    config = resolve(Source("sft"), words).config
    assert isinstance(config, SupervisedConfig)
    supervised.train(config, command=["toolwright", "sft"])
    begin, _, *steps, end = entries(file)
    assert (begin["command"], end["end"]) == ("sft", "finished")
    assert [step["step"] for step in steps] == [0, 1, 2]
    assert "policy/loss" in steps[2]["metrics"]
