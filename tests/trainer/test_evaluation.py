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


def test_evaluation_samples_by_settings_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", *SMALL, "eval.samples=4", "eval.temperature=1", "rollout.temperature=1"]
    assert main([*line, "run.name=likeliest", "eval.sampling.top_k=1"]) == 0
    assert main([*line, "run.name=any"]) == 0
    likeliest, drawn = (
        load(Path("runs") / name / "rollouts/step_000000.parquet") for name in ("likeliest", "any")
    )
    assert len({tuple(t.tokens) for t in likeliest}) == 1, "one token to choose from"
    assert len({tuple(t.tokens) for t in drawn}) > 1
    assert main([*line, "eval.sampling.top_q=1"]) == 2
    assert "top_q" in capsys.readouterr().err


def test_a_run_may_begin_without_evaluation() -> None:
    row = {"prompt": QUESTION, "data_source": "arithmetic", "reward_model": {"ground_truth": "2"}}
    Path("learned.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(2)))
    sizes = ["rollout.prompts=2", "rollout.samples=2", "train.steps=1", "task.train=learned.jsonl"]
    assert main(["train", *SMALL, *sizes, "run.name=late", "eval.at_start=false"]) == 0
    assert [step["step"] for step in metrics(Path("runs/late"))] == [1]


def test_long_prompts_are_cut_where_the_task_says_so() -> None:
    row = {"prompt": "9" * 40 + QUESTION, "data_source": "arithmetic", "reward_model": {"ground_truth": "2"}}
    Path("judged.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["eval", *SMALL, "task.max_prompt_tokens=12", "task.long_prompts=left", "run.name=cut"]) == 0
    [attempt] = load(Path("runs/cut/rollouts/step_000000.parquet"))
    prompt = attempt.segments[0]
    assert len(prompt.tokens) == 12
    assert QUESTION in prompt.text


def test_training_needs_a_file_to_train_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL]) == 2
    assert "task 'file' has no training tasks; set task.train" in capsys.readouterr().err


def test_demonstrations_need_no_file_to_train_on() -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "2"}]
    Path("said.jsonl").write_text(json.dumps({"messages": messages}))
    assert main(["sft", *SMALL, "demonstrations=said.jsonl", "steps=2", "run.name=warm"]) == 0
    assert metrics(Path("runs/warm"))[-1]["held_out/attempts"] == 3


def test_the_table_has_measures_with_intervals_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"prompt": QUESTION, "data_source": source, "reward_model": {"ground_truth": "2"}}
        for source in ("arithmetic", "arithmetic", "numeric")
    ]
    Path("judged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["eval", *SMALL, "eval.samples=2", "eval.temperature=1"]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    assert ["measure", "value", "95", "%"] in lines
    assert {line[0] for line in lines if line} >= {"accuracy,", "pass@2", "maj@2", "reward", "numeric", "all"}
    assert ["attempts", "6"] in lines


def test_samples_without_temperature_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", *SMALL, "eval.samples=2"]) == 0
    assert "all 2 attempts at a task are the same" in capsys.readouterr().err


class TestTwoEvaluations:
    @pytest.fixture(autouse=True)
    def first(self, judged: None, capsys: pytest.CaptureFixture[str]) -> None:
        sampled = ("eval.samples=2", "eval.temperature=1")
        assert main(["eval", *SMALL, *sampled, "run.name=first"]) == 0
        assert main(["eval", *SMALL, *sampled, "run.name=second", "run.seed=1"]) == 0
        capsys.readouterr()

    def test_two_runs_are_compared_task_by_task(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["runs", "compare", "first", "second"]) == 0
        shown = capsys.readouterr().out
        assert "held out, task by task" in shown
        assert "permutation test" in shown or "McNemar" in shown
        assert main(["runs", "compare", "first", "second", "--json"]) == 0
        [paired] = json.loads(capsys.readouterr().out)["held_out"]
        assert paired[""]["accuracy"]["tasks"] == 3

    def test_a_model_is_compared_with_a_run(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", *SMALL, "--against", "first"]) == 0
        assert "first" in capsys.readouterr().out
        assert main(["eval", *SMALL, "--json", "--against=runs/first"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["against"][""]["accuracy"]["tasks"] == 3
        assert figures["held_out/attempts"] == 3

    def test_a_run_without_evaluation_is_refused_before_anything_is_tried(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("runs/first/evaluations.jsonl").unlink()
        assert main(["eval", *SMALL, "--against", "first"]) == 2
        assert "has no evaluation" in capsys.readouterr().err
        assert main(["eval", *SMALL, "--against", "nowhere"]) == 2
        assert "no run at nowhere" in capsys.readouterr().err
        assert main(["eval", *SMALL, "--against"]) == 2
        assert "argument --against: expected one argument" in capsys.readouterr().err
        assert main(["runs", "compare", "first", "second"]) == 0
        assert "task by task" not in capsys.readouterr().out


def test_two_models_are_evaluated_by_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "2"}]
    Path("said.jsonl").write_text(json.dumps({"messages": messages}))
    assert main(["sft", *SMALL, "demonstrations=said.jsonl", "steps=2", "run.name=warm"]) == 0
    capsys.readouterr()
    own = ["task=file", "task.held_out=judged.jsonl", "rollout.max_tokens=4", "run.threads=1"]
    assert main(["eval", *own, "model.path=runs/warm/model", "--against", "runs/warm/model", "--json"]) == 0
    paired = json.loads(capsys.readouterr().out)["against"][""]["accuracy"]
    assert (paired["difference"], paired["p"]) == (0, 1)
