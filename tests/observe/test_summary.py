"""The closing table."""

from __future__ import annotations

from pathlib import Path

from toolwright.observe.metrics import Metrics
from toolwright.observe.report import write_report
from toolwright.observe.summary import closing_table


def test_the_table_says_before_after_and_best(run: Path) -> None:
    write_report(run)
    assert closing_table(run).splitlines() == [
        "held-out accuracy",
        "  before   10.0 %  step 0",
        "  after    62.5 %  +52.5 points",
        "  best     75.0 %  step 4",
        "training",
        "  steps         6",
        "  time     13.0 s  2.17 s a step",
        f"  run     {run}",
        f"  report  {run / 'report.html'}",
    ]


def test_the_table_names_the_report_only_if_it_exists(run: Path) -> None:
    assert "report.html" not in closing_table(run)


def test_without_accuracy_the_held_out_reward_is_shown(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(0, {"held_out/reward": 0.25})
    metrics.append(1, {"held_out/reward": -1.5})
    table = closing_table(tmp_path)
    assert "held-out reward" in table
    assert "-1.75" in table


def test_an_evaluation_after_some_steps_is_none_of_before(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(10, {"held_out/accuracy": 0.25})
    assert closing_table(tmp_path).splitlines()[:2] == ["held-out accuracy", "  after    25.0 %  step 10"]
    metrics.append(20, {"held_out/accuracy": 0.5})
    metrics.append(30, {"held_out/accuracy": 0.375})
    assert closing_table(tmp_path).splitlines()[:3] == [
        "held-out accuracy",
        "  after    37.5 %  step 30",
        "  best     50.0 %  step 20",
    ]


def test_a_run_without_evaluation_has_a_table_too(tmp_path: Path) -> None:
    assert closing_table(tmp_path).splitlines()[:2] == ["training", "  steps         0"]


def test_the_table_is_plain_ascii(run: Path) -> None:
    assert closing_table(run).isascii()
