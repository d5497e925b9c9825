"""metrics.jsonl survives crashes, resumes and numbers that are not numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics, Row, series


def test_a_step_is_one_line_of_json(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "run" / "metrics.jsonl")
    metrics.append(1, {"reward/mean": 0.5, "weights_version": 3, "note": "é"})
    assert metrics.path.read_text() == '{"step": 1, "reward/mean": 0.5, "weights_version": 3, "note": "é"}\n'


def test_each_line_is_on_disk_when_append_returns(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(3):
        metrics.append(step, {})
        assert len(Metrics.read(metrics.path)) == step + 1


def test_values_that_are_not_finite_are_null_and_listed(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(1, {"a": math.nan, "b": -math.inf, "c": 1.0})
    (row,) = Metrics.read(metrics.path)
    assert row == {"step": 1, "a": None, "b": None, "c": 1.0, "nonfinite": ["a", "b"]}


def test_scalars_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    class Scalar:
        def __float__(self) -> float:
            return 0.25

    metrics = Metrics(tmp_path / "metrics.jsonl")
    metrics.append(1, {"a": Scalar()})  # type: ignore[dict-item]
    assert Metrics.read(metrics.path) == [{"step": 1, "a": 0.25}]


def test_a_cut_off_last_line_is_dropped_and_the_next_line_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "rew')
    assert Metrics.read(path) == [{"step": 1}]
    Metrics(path).append(2, {})
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_a_whole_last_line_without_its_newline_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}')
    Metrics(path).append(3, {})
    assert [row["step"] for row in Metrics.read(path)] == [1, 2, 3]


def test_a_broken_line_in_the_middle_is_an_error_that_says_where(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(UserError, match="line 2"):
        Metrics.read(path)


def test_no_file_is_no_metrics(tmp_path: Path) -> None:
    assert Metrics.read(tmp_path / "metrics.jsonl") == []


def test_truncate_forgets_the_steps_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = Metrics(path)
    for step in range(6):
        metrics.append(step, {"loss": step / 2})
    with path.open("a") as file:
        file.write('{"step": 6, "lo')
    Metrics.truncate(path, after_step=3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3]
    metrics.append(4, {})
    assert [row["step"] for row in Metrics.read(path)] == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == [path]


def test_truncate_without_a_file_does_nothing(tmp_path: Path) -> None:
    Metrics.truncate(tmp_path / "metrics.jsonl", after_step=3)
    assert list(tmp_path.iterdir()) == []


def test_series_are_finite_numbers_in_order_a_repeated_step_counting_once() -> None:
    rows: list[Row] = [
        {"step": 2, "a": 1.0},
        {"step": 1, "a": 5},
        {"step": 2, "a": 3.0},
        {"step": 3, "a": None},
        {"step": 4},
    ]
    assert series(rows, "a") == [(1, 5.0), (2, 3.0)]
