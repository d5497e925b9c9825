"""Run folders of version 0.1.0: their checkpoints, models, adapters, settings and rollouts still load."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.observe import rollouts
from toolwright.observe.report import write_report
from toolwright.record import TokenValues

ARCHIVE = Path(__file__).with_name("runs_of_0_1.tar.xz")
RUNS = ("sums", "gridworld-ppo", "lora")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tarfile.open(ARCHIVE) as archive:
        if hasattr(tarfile, "data_filter"):  # Python before 3.11.4 has none
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_version_0_1_resumes_from_its_checkpoint(runs: Path, name: str) -> None:
    before = [json.loads(line)["step"] for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    assert main(["train", f"run.name={name}", "run.resume=true", f"train.steps={max(before) + 1}"]) == 0
    after = [json.loads(line)["step"] for line in (runs / name / "metrics.jsonl").read_text().splitlines()]
    assert set(after) == {*before, max(before) + 1}


@pytest.mark.parametrize("name", RUNS)
def test_attempts_recorded_by_version_0_1_are_shown(runs: Path, name: str) -> None:
    attempts = [rollouts.read(path) for path in rollouts.files(runs / name).values()]
    assert all(len(step) == 4 for step in attempts)
    values = [rollouts.token_values(path) for path in rollouts.files(runs / name).values()]
    assert values == [[TokenValues()] * 4] * len(attempts), "version 0.1 kept none"
    assert main(["view", str(runs / name), "--best", "--full"]) == 0
    assert "attempt" in write_report(runs / name).read_text()


def test_a_model_of_version_0_1_is_evaluated(runs: Path) -> None:
    assert main(["eval", "task=sums", "model.path=runs/sums/model", "task.held_out_size=2"]) == 0
