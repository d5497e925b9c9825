"""The alarm for an engine that drifts away from its learner, from the step to the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.trainer.gap import GapAlarm

from . import runs
from .conftest import Build


def heard(*gaps: float, limit: float = 0.1) -> list[bool]:
    alarm = GapAlarm(limit, engine="vllm")
    return [alarm.heard(gap) is not None for gap in gaps]


def test_beyond_the_limit_every_step_is_told() -> None:
    assert heard(0.2, 0.05, 0.11) == [True, False, True]


def test_a_jump_is_told_below_the_limit_once_there_is_a_past_to_compare_with() -> None:
    assert heard(*[0.003] * 4, 0.05) == [False] * 5, "four steps are no past"
    assert heard(*[0.003] * 5, 0.05) == [*[False] * 5, True]
    assert heard(*[0.03] * 5, 0.05) == [False] * 6, "not far above"
    assert heard(*[1e-6] * 5, 1e-3) == [False] * 6, "far above, and nothing yet"


def test_what_is_told_names_engine_key_and_numbers() -> None:
    alarm = GapAlarm(0.1, engine="http")
    assert alarm.heard(0.25) == (
        "the http engine's log-probabilities are 0.25 from the learner's on average, beyond "
        "algorithm.correction.alarm=0.1; are its weights the learner's?"
    )


def test_a_run_tells_it_in_metrics_log_and_report(tmp_path: Path) -> None:
    run = runs.trained(
        tmp_path, "algorithm.correction.alarm=1e-30", "update.policy.lr=1e-30", "run.name=apart"
    )
    rows = runs.metrics(run)
    alarmed = [row["step"] for row in rows if row.get("gap/alarm")]
    log, report = (run / "log.txt").read_text(), (run / "report.html").read_text()
    assert ("engine and learner were far apart" in report) == bool(alarmed)
    for step in alarmed:
        assert f"step {step}: the native engine's log-probabilities are" in log


@pytest.mark.parametrize(
    ("engine", "mode", "used"),
    [
        ("native", "auto", "none"),
        ("vllm", "auto", "truncate"),
        ("http", "auto", "truncate"),
        ("vllm", "none", "none"),
        ("native", "mask", "mask"),
    ],
)
def test_only_the_native_engine_needs_no_correction(engine: str, mode: str, used: str, build: Build) -> None:
    credit = build().learner.credit
    credit.config = runs.configured(f"engine.name={engine}", f"algorithm.correction.mode={mode}")
    credit.__post_init__()
    assert credit.correction == used
    assert credit.learner_pass(exact=False) == (used != "none")
