"""What looks wrong with a search for workflows, for `toolwright doctor RUN`."""

from __future__ import annotations

from collections import Counter

from toolwright.doctor.diagnosis import Diagnosis
from toolwright.doctor.run_history import RunHistory
from toolwright.observe.numbers import percent
from toolwright.workflow.record import records

MANY = 0.3  # of the runs of candidates
MOSTLY = 0.8  # of candidates
ENOUGH = 10  # candidates, before anything is said of them
MOST_TEXT = 200


def runs_fail(history: RunHistory) -> Diagnosis | None:
    """Runs of candidates that fail: a model out of reach, a budget, code that raises."""
    for name, record in records(history.path).items():
        failures: Counter[str] = Counter()
        for row in record.rows:
            failures.update(row.failures)
        runs = record.runs
        if runs and failures.total() >= MANY * runs:
            why, count = failures.most_common(1)[0]
            return Diagnosis(
                "problem",
                "runs of workflows fail",
                f"{name}: {failures.total()} of {runs} runs failed ({percent(failures.total() / runs)}), "
                f"{count} with: {why[:MOST_TEXT]}",
                "check that executor.chat names a model that answers, with a key and limits that allow it; "
                "executor.parallel=4 asks less at once",
                cause=0.9,
            )
    return None


def candidates_refused(history: RunHistory) -> Diagnosis | None:
    """Proposals that are no workflows."""
    for name, record in records(history.path).items():
        refused = [row.failure for row in record.rows if row.failure]
        if len(record.rows) >= ENOUGH and len(refused) >= MOSTLY * len(record.rows):
            why = Counter(refused).most_common(1)[0][0]
            return Diagnosis(
                "problem",
                "candidates are refused",
                f"{name}: {len(refused)} of {len(record.rows)} candidates, most often: {why[:MOST_TEXT]}",
                "proposer.name=uniform proposes legal edits alone; or name a better model in proposer.chat",
                cause=0.7,
            )
    return None


def no_gain(history: RunHistory) -> Diagnosis | None:
    """A search that is over and found nothing better than what it began with."""
    for name, record in records(history.path).items():
        if record.why and record.best == 0 and len(record.rows) >= ENOUGH:
            return Diagnosis(
                "warning",
                "nothing better found",
                f"{name}: {len(record.rows)} candidates and {record.runs} runs of {record.budget}, and the "
                f"start is still the best, at {percent(record.start.score)}",
                f"search.runs={2 * record.budget}, search.tasks=80 so that small gains show, or other "
                "search.operators",
                cause=0.5,
            )
    return None
