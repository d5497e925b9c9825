"""The alarm for an engine that drifts away from its learner, from the step to the report."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from toolwright.trainer.run_warnings import GapAlarm

from . import runs
from .apart import OFF
from .conftest import Build

HERE = Path(__file__).resolve().parent


def warned(*gaps: float, limit: float = 0.1) -> list[bool]:
    alarm = GapAlarm(limit, engine="vllm")
    return [alarm.warning(gap) is not None for gap in gaps]


def test_beyond_the_limit_every_step_is_reported() -> None:
    assert warned(0.2, 0.05, 0.11) == [True, False, True]


def test_a_jump_is_reported_below_the_limit_once_there_is_a_past_to_compare_with() -> None:
    assert warned(*[0.003] * 4, 0.05) == [False] * 5, "four steps are no past"
    assert warned(*[0.003] * 5, 0.05) == [*[False] * 5, True]
    assert warned(*[0.03] * 5, 0.05) == [False] * 6, "not far above"
    assert warned(*[1e-6] * 5, 1e-3) == [False] * 6, "far above, and nothing yet"


def test_the_gap_warning_names_engine_key_and_numbers() -> None:
    alarm = GapAlarm(0.1, engine="http")
    assert alarm.warning(0.25) == (
        "the http engine's log-probabilities are 0.25 from the learner's on average, beyond "
        "algorithm.correction.alarm=0.1; docs/engines.md, The gap, says what to look at"
    )


def test_a_gap_that_is_no_number_is_reported_and_not_remembered() -> None:
    assert warned(math.nan, *[0.003] * 5, math.inf, 0.004, 0.05) == [True, *[False] * 5, True, False, True]


@pytest.mark.parametrize("alarm", [0.1, 0.5])
def test_a_run_tells_it_in_metrics_log_and_report(tmp_path: Path, alarm: float) -> None:
    engine = f"engine.name={HERE}/apart.py:Apart"
    run = runs.trained(tmp_path, engine, f"algorithm.correction.alarm={alarm}")
    rows = [row for row in runs.metrics(run) if row["step"] > 0]
    log, report = (run / "log.txt").read_text(), (run / "report.html").read_text()
    told = alarm < OFF
    assert [row["gap/alarm"] for row in rows] == [float(told)] * 2
    assert ("step 2: the " in log) == told
    assert ("engine and learner were far apart in 2 steps: 1, 2" in report) == told
    for row in rows:
        assert row["gap/abs_mean"] == pytest.approx(OFF, abs=1e-4)
        assert row["correction/weight_mean"] == pytest.approx(math.exp(OFF), rel=1e-3), "corrected, too"


@pytest.mark.parametrize(
    ("exact", "mode", "used"),
    [
        (True, "auto", "none"),
        (False, "auto", "truncate"),
        (False, "none", "none"),
        (True, "mask", "mask"),
    ],
)
def test_only_an_exact_engine_needs_no_correction(exact: bool, mode: str, used: str, build: Build) -> None:
    credit = build(f"algorithm.correction.mode={mode}").learner.credit
    assert credit.correction(exact=exact) == used
