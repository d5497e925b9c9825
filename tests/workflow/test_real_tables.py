"""The recorded tables of real models: complete, and searches replayed on them find something better."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.workflow.record import records
from toolwright.workflow.table import RecordedTable, load_tables

FILES = sorted((Path(__file__).parents[2] / "docs" / "results").glob("workflow-*.json.gz"))
DATA = {"gsm8k": "math", "math500": "math", "humaneval": "code", "mbpp": "code"}
DATA |= {"hotpotqa": "question", "drop": "question"}


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.name)
def file(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def tables_of(file: Path) -> dict[str, RecordedTable]:
    return load_tables(file)


def test_there_are_six_data_sets_with_enough_test_tasks(file: Path) -> None:
    found = tables_of(file)
    assert {name: table.kind for name, table in found.items()} == DATA
    for table in found.values():
        assert len(table.tasks["test"]) >= 130
        assert not set(table.tasks["validation"]) & set(table.tasks["test"])
        cells = [cell for rows in table.scores for row in rows for cell in row]
        assert len(cells) == len(table.programs) * table.repeats * len(table.columns)
        assert all(0.0 <= cell <= 1.0 for cell in cells)
        assert all(cost >= 0 for rows in table.costs for row in rows for cost in row)


def test_a_search_is_replayed_on_them(file: Path, tmp_path: Path) -> None:
    """On GSM8K votes gain 12 points: with a budget of 1,000 runs, a search finds some of it."""
    words = ["data=[gsm8k]", "executor.name=recorded", f"executor.table={file}", f"run.dir={tmp_path}"]
    words += ["search.tasks=80", "search.held_out=160", "search.runs=1000", "run.name=replay"]
    assert main(["workflow", "search", *words]) == 0
    (record,) = records(tmp_path / "replay").values()
    assert record.held_out["best"] > record.held_out["start"] + 0.03
    table = tables_of(file)["gsm8k"]
    assert {row.workflow.fingerprint for row in record.rows} <= set(table.programs)
