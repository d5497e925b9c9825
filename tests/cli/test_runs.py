"""`toolwright runs` on real runs: listed, compared, and pruned."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.trainer.runs import metrics, rollouts, trained
from toolwright.cli import main
from toolwright.observe import run_folders
from toolwright.trainer.run_folder import RunFolder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/plain` and, deeper, `runs/sweep/dapo`."""
    home = tmp_path_factory.mktemp("home")
    every = ("train.steps=3", "checkpoint.every=1", "checkpoint.keep=3", "eval.every=3")
    trained(home / "runs", *every, "run.name=plain")
    trained(home / "runs", *every, "run.name=sweep/dapo", "algorithm=dapo", "update.minibatches=2")
    return home


@pytest.fixture
def home(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_at_any_depth_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["run", "kind", "state", "step", "reward", "held", "out", "size", "written"]
    assert {line.split()[0] for line in shown[1:]} == {"plain", "sweep/dapo"}
    assert all(line.split()[1:4] == ["train", "finished", "3/3"] for line in shown[1:])
    assert main(["runs", "list", "--dir", "runs/sweep", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["path"] == "runs/sweep/dapo"
    assert row["reward"] == metrics(home / "runs/sweep/dapo")[-1]["reward/mean"]
    assert row["size"] == sum(f.stat().st_size for f in (home / "runs/sweep/dapo").rglob("*") if f.is_file())


def test_options_of_the_listing_need_no_word_before_them(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "--json", "--dir", "runs/sweep"]) == 0
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == ["runs/sweep/dapo"]
    with pytest.raises(SystemExit):
        main(["runs", "--help"])
    assert "compare" in capsys.readouterr().out


def test_a_run_is_running_while_its_process_lives_and_its_report_is_not_written(home: Path) -> None:
    run = home / "runs/plain"
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:-1]))
    command = (run / "command.txt").read_text()
    if run_folders.process_alive(command) is not None:  # it was made by this very process
        assert run_folders.state(run, now=time.time() + 3600).status == "running"
        (run / "command.txt").write_text(command.replace("begun ", "begun 1"))
        assert run_folders.state(run).status == "stopped", "its number is another process's now"
    (run / "command.txt").write_text(command.replace(" on ", " on another-machine-than-"))
    assert run_folders.state(run).status == "running", "it has just written something"
    assert run_folders.state(run, now=time.time() + 3600).status == "stopped"
    os.utime(run / "report.html")
    assert run_folders.state(run).status == "stopped"
    (run / "metrics.jsonl").write_text("".join(lines))
    assert run_folders.state(run).status == "finished"


def test_a_run_whose_files_cannot_be_read_is_listed_with_the_reason(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "runs/plain/metrics.jsonl").write_text("no metrics\n{}\n")
    assert main(["runs", "list"]) == 0
    assert "metrics.jsonl, line 1 is not a line of metrics" in " ".join(capsys.readouterr().out.split())


def test_links_and_a_runs_own_folders_are_not_searched(home: Path) -> None:
    (home / "runs/around").symlink_to(home / "runs")
    shutil.copy(home / "runs/plain/config.yaml", home / "runs/plain/model/config.yaml")
    found = [path.relative_to(home) for path in run_folders.find(home)]
    assert found == [Path("runs/plain"), Path("runs/sweep/dapo")]


def test_settings_that_differ_and_closing_figures_stand_side_by_side(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "compare", "plain", "sweep/dapo"]) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert shown["algorithm.name"] == ["grpo", "dapo"]
    assert shown["update.minibatches"] == ["1", "2"]
    assert "run.name" not in shown
    assert "rollout.samples" not in shown
    assert shown["steps"] == ["3", "3"]
    assert main(["runs", "compare", "plain", "sweep/dapo", "--json", "--full"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["figures"]["policy/loss"] == [
        metrics(home / name)[-1]["policy/loss"] for name in ("runs/plain", "runs/sweep/dapo")
    ]
    assert "attempts/failed" in told["figures"]


def test_a_setting_that_one_run_does_not_have_is_a_dash_and_no_difference_from_null(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (home / "runs/plain/config.yaml").read_text()
    (home / "runs/other").mkdir()
    (home / "runs/other/config.yaml").write_text(f"{text}\nlater: {{unset: null, chosen: 3}}\n")
    assert main(["runs", "compare", "plain", "other"]) == 0
    shown = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines() if line}
    assert shown["later.chosen"] == ["-", "3"]
    assert "later.unset" not in shown


def test_pruning_lists_first_and_removes_when_told_to(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, before = home / "runs/plain", sorted((home / "runs/plain").rglob("*"))
    line = ["runs", "prune", "plain", "--keep-attempts", "1", "--checkpoints", "1"]
    assert main(line) == 0
    assert "would be removed; add --yes to do it" in capsys.readouterr().out
    assert sorted(run.rglob("*")) == before
    assert main([*line, "--yes", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["removed"]
    assert len(told["files"]) == 4
    assert list(rollouts(run)) == [3]
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step_3"]
    assert main(["view", "plain", "--best"]) == 0
    assert main(["train", "run.name=plain", "run.resume=true", "train.steps=4"]) == 0
    assert list(rollouts(run)) == [3, 4]


def test_a_run_further_down_is_found_by_its_own_name_if_no_other_has_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "compare", "plain", "dapo"]) == 0
    shutil.copytree(home / "runs/sweep", home / "runs/again")
    capsys.readouterr()
    assert main(["runs", "compare", "plain", "dapo"]) == 2
    assert "several runs are called dapo: again/dapo, sweep/dapo; say which" in capsys.readouterr().err


def test_attempts_before_a_step_go(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "prune", "plain", "sweep/dapo", "--attempts-before", "3", "--yes"]) == 0
    assert [list(rollouts(home / name)) for name in ("runs/plain", "runs/sweep/dapo")] == [[3], [3]]
    assert main(["runs", "prune", "plain", "--attempts-before", "3", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("nothing to remove\n")


def test_a_run_keeps_the_attempts_of_its_last_steps_as_it_goes(tmp_path: Path) -> None:
    run = trained(tmp_path, "run.name=x", "train.steps=4", "checkpoint.every=1", "checkpoint.keep_attempts=2")
    assert list(rollouts(run)) == [3, 4]
    assert [row["step"] for row in metrics(run)] == [0, 1, 2, 3, 4]
    (run / "rollouts/notes.txt").write_text("mine")
    RunFolder(run).keep_rollouts(1)
    assert sorted(path.name for path in (run / "rollouts").iterdir()) == ["notes.txt", "step_000004.parquet"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["list", "--dir", "nowhere"], "there is no folder nowhere"),
        (["lst"], "invalid choice: 'lst'"),
        (["compare", "plain"], "needs two runs or more"),
        (["compare", "plain", "plane"], "no run at plane; did you mean"),
        (["prune", "plain"], "name what to remove"),
        (["prune", "plain", "--checkpoints", "0"], "a run without a checkpoint cannot be resumed"),
        (["prune", "plain", "--keep-attempts", "-1"], "expected a number of steps"),
        (["prune", "plain", "--keep-attempts", "1", "--attempts-before", "2"], "not allowed with"),
    ],
)
def test_mistakes_are_one_sentence(
    line: list[str], said: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *line]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
