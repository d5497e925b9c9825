"""`toolwright eval`: a model scored by a file of held-out tasks alone, its attempts kept if it has a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.record import load

from .runs import MODEL, metrics

SIZES = [f"model.{key}={value}" for key, value in MODEL.items()]
SMALL = [*SIZES, "task=file", "task.held_out=judged.jsonl", "rollout.max_tokens=4", "run.threads=1"]
QUESTION = "1+1="


@pytest.fixture(autouse=True)
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = {"prompt": QUESTION, "data_source": "arithmetic", "reward_model": {"ground_truth": "2"}}
    Path("judged.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(3)))


def test_a_file_of_held_out_tasks_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *SMALL, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["held_out/attempts"] == 3
    assert {path.name for path in Path().iterdir()} == {"judged.jsonl"}, "without a name nothing is kept"


def test_with_a_name_it_keeps_its_attempts(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", *SMALL, "run.name=judged", "eval.samples=2", "eval.temperature=1"]
    assert main(line) == 0
    assert "attempts  toolwright view runs/judged --step 0" in capsys.readouterr().out
    run = Path("runs/judged")
    kept = load(run / "rollouts/step_000000.parquet")
    assert [t.task.prompt[0]["content"] for t in kept] == [QUESTION] * 6
    [figures] = metrics(run)
    assert figures["held_out/truncated"] == sum(t.cut for t in kept) / 6
    assert "toolwright eval" in (run / "command.txt").read_text()
    assert (run / "report.html").is_file()
    assert main(["view", "judged", "--step", "0"]) == 0
    assert QUESTION in capsys.readouterr().out
    assert main(line) == 2
    assert "run folder runs/judged exists" in capsys.readouterr().err


def test_training_needs_a_file_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL]) == 2
    assert "task 'file' has no training tasks; set task.train" in capsys.readouterr().err


def test_demonstrations_need_no_file_to_train_on() -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "2"}]
    Path("said.jsonl").write_text(json.dumps({"messages": messages}))
    assert main(["sft", *SMALL, "demonstrations=said.jsonl", "steps=2", "run.name=warm"]) == 0
    assert metrics(Path("runs/warm"))[-1]["held_out/attempts"] == 3
