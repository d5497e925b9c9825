"""A warm start that was killed goes on as if it had not been: same data, losses and weights, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forks import forks
from toolwright.cli import main
from toolwright.observe.retention import removable
from toolwright.trainer.held_out_judge import HeldOutJudge
from toolwright.trainer.run_folder import RunFolder
from toolwright.trainer.supervised import _WarmStart

from . import dies
from .runs import HERE, metrics

WEIGHTS = "model/model.safetensors"
SHAPE = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")
SORT = ("task=sort", "task.params.alphabet=abc", "task.params.max_length=4", "task.held_out_size=8")
ROOM = ("model.context=32", "rollout.max_tokens=6", "run.threads=1")
# Two and a half steps an epoch, so that a run is resumed within one.
LINE = (
    "sft",
    *SHAPE,
    *SORT,
    *ROOM,
    "task.train_size=20",
    "batch=8",
    "steps=8",
    "checkpoint.every=2",
    "optimizer.lr=1e-2",
    "optimizer.warmup_steps=3",
)
SUMS = (f"task.name={HERE}/sums.py:tasks", "task.held_out_size=4", "run.threads=1", "tools={calculator: {}}")
TURNS = ("rollout.max_tokens=24", "rollout.max_turns=3", "model.context=96", "rollout.tool_prompt=''")


def line(runs: Path, *own: str, name: str = "x") -> list[str]:
    """The command line of a small run. What a test says itself wins."""
    words = [*LINE[1:], f"run.dir={runs}", f"run.name={name}", *own]
    return ["sft", *{word.split("=")[0]: word for word in words}.values()]


def history(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in metrics(run)]


def evaluations(run: Path) -> list[Any]:
    return [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]


def killed(cwd: Path, moment: str, *words: str, step: int = 4) -> Path:
    """A run killed in `step` at the moment that `dies.py` knows by this name."""
    process = forks().Process(target=dies.run, args=(moment, step, [*words, "run.name=x"], cwd))
    process.start()
    process.join(400)
    assert process.exitcode == -signal.SIGKILL, (cwd / "said.txt").read_text()
    return cwd / "runs/x"


def resumed(run: Path, *own: str) -> int:
    return main(["sft", f"run.dir={run.parent}", f"run.name={run.name}", "run.resume=true", *own])


def assert_same(run: Path, whole: Path) -> None:
    assert (run / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes()
    assert history(run) == history(whole)
    assert evaluations(run) == evaluations(whole)
    assert [row["step"] for row in metrics(run)] == list(range(9))
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["step_6", "step_8"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("whole")
    assert main(line(runs, name="whole")) == 0
    return runs / "whole"


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that calls the tool most of the time."""
    runs = tmp_path_factory.mktemp("warm")
    own = ("steps=120", "batch=16", "optimizer.lr=1e-2", f"run.dir={runs}", "run.name=warm")
    assert main(["sft", *SHAPE, *SUMS, *TURNS, *own]) == 0
    return runs / "warm"


@pytest.mark.parametrize(
    ("moment", "goes_on_after"),
    [
        ("once_it_is_written", 4),
        ("half_way_through_its_tensors", 2),
        ("before_it_has_its_name", 2),
        ("while_the_model_is_replaced", 4),
        ("before_its_metrics_are_written", 2),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(
    moment: str, goes_on_after: int, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = killed(tmp_path, moment, *LINE)
    assert resumed(run) == 0
    assert f"going on after step {goes_on_after}\n" in capsys.readouterr().out
    assert_same(run, whole)


def test_a_run_killed_before_its_first_checkpoint_begins_again(whole: Path, tmp_path: Path) -> None:
    run = killed(tmp_path, "before_its_metrics_are_written", *LINE, step=2)
    assert [row["step"] for row in metrics(run)] == [0, 1]
    assert resumed(run) == 0
    assert_same(run, whole)


def test_a_run_killed_before_it_has_any_metrics_begins_again(whole: Path, tmp_path: Path) -> None:
    """Its evaluation is on the disk already, and is not there twice afterwards."""
    run = killed(tmp_path, "before_its_metrics_are_written", *LINE, step=0)
    assert len(evaluations(run)) == 1
    assert resumed(run) == 0
    assert_same(run, whole)


def test_a_run_killed_between_checkpoint_and_model_has_its_last_model(whole: Path, tmp_path: Path) -> None:
    run = killed(tmp_path, "once_it_is_written", *LINE, step=8)
    assert resumed(run) == 0
    assert_same(run, whole)


def sampling(warm: Path) -> tuple[str, ...]:
    own = (f"model.path={warm}/model", "demonstrations=sampled", "rollout.samples=4", "optimizer.lr=1e-3")
    return ("sft", *SUMS, *TURNS, *own, "batch=8", "steps=8", "checkpoint.every=2")


@pytest.fixture(scope="module")
def whole_sampled(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("whole_sampled")
    assert main([*sampling(warm), f"run.dir={runs}", "run.name=whole"]) == 0
    return runs / "whole"


@pytest.mark.parametrize(
    ("moment", "step"),
    [("before_its_metrics_are_written", 1), ("once_it_is_written", 4), ("before_its_metrics_are_written", 8)],
)
def test_demonstrations_are_sampled_once(
    moment: str, step: int, warm: Path, whole_sampled: Path, tmp_path: Path
) -> None:
    run = killed(tmp_path, moment, *sampling(warm), step=step)
    sampled = (run / "rollouts/step_000000.parquet").stat()
    assert resumed(run) == 0
    assert not removable(run, attempts_before=8), "what a resumed run needs stays"
    after = (run / "rollouts/step_000000.parquet").stat()
    assert (after.st_ino, after.st_mtime_ns) == (sampled.st_ino, sampled.st_mtime_ns)
    assert_same(run, whole_sampled)


def test_a_run_stopped_while_it_samples_begins_to_sample_again(
    warm: Path, whole_sampled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = killed(tmp_path, "before_its_attempts_are_kept", *sampling(warm), step=0)
    evaluate = HeldOutJudge.held_out

    def and_stop(judge: HeldOutJudge, folder: RunFolder, step: int) -> dict[str, float]:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(judge, folder, step)

    monkeypatch.setattr(HeldOutJudge, "held_out", and_stop)
    with pytest.raises(SystemExit):
        main([*sampling(warm), f"run.dir={tmp_path}", "run.name=y"])
    monkeypatch.undo()
    for stopped in (run, tmp_path / "y"):
        assert not list((stopped / "rollouts").iterdir())
        assert not (stopped / "model").exists()
        assert resumed(stopped) == 0
        assert_same(stopped, whole_sampled)


def test_epochs_follow_from_what_was_sampled(
    warm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for word in sampling(warm) if not word.startswith("steps=")]
    assert main([*words, "epochs=1.5", f"run.dir={tmp_path}", "run.name=x"]) == 0
    said = capsys.readouterr().out
    written = yaml.safe_load((tmp_path / "x/config.yaml").read_text())
    assert f"{written['steps']} steps of 8: 1.5 × " in said
    assert metrics(tmp_path / "x")[-1]["step"] == written["steps"] > 1
    assert resumed(tmp_path / "x") == 0, "the number of steps is as it was"


def test_epochs_count_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path, "steps=auto", "epochs=1.5", "optimizer.warmup_steps=0")) == 0
    assert "4 steps of 8: 1.5 × 20 demonstrations (epochs)" in capsys.readouterr().out
    assert metrics(tmp_path / "x")[-1]["step"] == 4
    assert metrics(tmp_path / "x")[-1]["policy/lr"] < 0.002, "the rate has fallen by the end"


def test_steps_and_epochs_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "epochs=2", "--dry-run"]) == 2
    assert "steps=8 and epochs=2 exclude each other; set one of them" in capsys.readouterr().err


def test_a_run_may_go_on_for_more_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line(tmp_path, "optimizer.decay=constant")) == 0
    assert main(line(tmp_path, "optimizer.decay=constant", "steps=4", name="y")) == 0
    assert resumed(tmp_path / "y", "steps=8") == 0
    assert "settings that differ from before: steps=8 (was 4)" in capsys.readouterr().out
    assert (tmp_path / "x" / WEIGHTS).read_bytes() == (tmp_path / "y" / WEIGHTS).read_bytes()
    assert resumed(tmp_path / "y") == 0
    assert "all 8 steps are done; raise steps to train further" in capsys.readouterr().out
    assert resumed(tmp_path / "y", "steps=3") == 2
    assert "has taken 8 steps already, more than steps=3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("task.train_size=19", "the checkpoint is of other demonstrations"),
        ("model.width=64", "the checkpoint is of another model or command"),
    ],
)
def test_a_run_that_cannot_go_on_is_left_as_it_is(
    own: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line(tmp_path, "steps=2")) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()}
    assert resumed(tmp_path / "x", own) == 2
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()} == before
    assert resumed(tmp_path / "x", "steps=3") == 0


def test_a_run_without_checkpoints_is_not_begun_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line(tmp_path, "steps=2")) == 0
    shutil.rmtree(tmp_path / "x/checkpoints")
    assert resumed(tmp_path / "x") == 2
    assert f"train further with model.path={tmp_path}/x/model" in capsys.readouterr().err
    assert metrics(tmp_path / "x")[-1]["step"] == 2


def test_a_judge_that_fails_at_the_end_leaves_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(training: _WarmStart) -> dict[str, float]:
        if training.step:
            raise RuntimeError("the dog ate it")
        return {}

    monkeypatch.setattr(_WarmStart, "held_out", fails)
    with pytest.raises(RuntimeError, match="the dog ate it"):
        main(line(tmp_path, "steps=2"))
    assert (tmp_path / "x/checkpoints/step_2").is_dir()
    assert [row["step"] for row in metrics(tmp_path / "x")] == [0, 1, 2]
