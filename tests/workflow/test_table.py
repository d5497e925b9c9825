"""Recorded tables: a model's scores are kept once, and searches are replayed on them without it."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from toolwright.cli import main
from toolwright.config.from_words import from_words
from toolwright.workflow import recording
from toolwright.workflow.pool import ExperiencePool, Payment
from toolwright.workflow.program import single_call
from toolwright.workflow.record import records
from toolwright.workflow.recording import record_tables
from toolwright.workflow.table import RecordedTable, load_tables, save_tables

ADDER = '''
import re, zlib
from toolwright.providers import PROVIDERS, ChatReply


class Adder:
    """Adds numbers. Told to take steps it is right more often; what it says follows from the seed."""

    def __init__(self, settings):
        self.name = settings.model

    async def complete(self, messages, *, temperature, max_tokens, seed=None, stop=(), tools=None):
        said = messages[-1]["content"]
        a, b = map(int, re.findall(r"(\\d+)\\+(\\d+)", said)[-1])
        luck = zlib.crc32(f"{seed}".encode()) % 100
        right = luck < (85 if "step by step" in said else 40)
        return ChatReply(str(a + b if right else a + b + 1), prompt_tokens=10, completion_tokens=2)
'''


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "adder.py").write_text(ADDER)
    rows = [
        {
            "prompt": [{"role": "user", "content": f"{a}+{b}?"}],
            "data_source": "openai/gsm8k",
            "reward_model": {"ground_truth": str(a + b)},
        }
        for a in range(10)
        for b in range(10)
    ]
    (folder / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    chat = f"{{provider: '{folder / 'adder.py'}:Adder', model: adder, price: 1}}"
    return [
        f"data=[{folder / 'sums.jsonl'}]",
        "executor.name=chat",
        f"executor.chat={chat}",
        "search.operators=[Custom,Vote]",
        "search.tasks=20",
        "search.held_out=40",
    ]


@pytest.fixture(scope="module")
def file(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "tables.json.gz"
    assert main(["workflow", "record", str(path), "--workflows", "10", "--repeats", "2", *words]) == 0
    return path


def table_of(file: Path) -> RecordedTable:
    (table,) = load_tables(file).values()
    return table


def test_every_workflow_ran_on_every_task_of_both_splits(file: Path) -> None:
    table = table_of(file)
    assert len(table.workflows) == len(table.programs) == 10
    assert {split: len(ids) for split, ids in table.tasks.items()} == {"validation": 20, "test": 40}
    assert {len(row) for row in table.scores} == {table.repeats} == {2}
    assert {len(tasks) for row in table.scores for tasks in row} == {60}
    means = {name: sum(table.scores[row][0]) / 60 for name, row in table.rows.items()}
    steps = [name for name, made in table.programs.items() if "step by step" in str(made.prompts)]
    assert max(means, key=lambda name: means[name]) in steps
    single = next(w for w in table.programs.values() if w.calls == 1)
    assert table.outcome(single, table.tasks["test"][0], 0).cost == pytest.approx(12e-6)


def test_a_second_recording_reads_what_the_first_one_ran(words: list[str], file: Path) -> None:
    pool = ExperiencePool(file.with_suffix(".runs") / "pool.db")
    before, ran = table_of(file), pool.spent()
    again = asyncio.run(
        record_tables(from_words("workflow", words), file, 10, 2, until=time.monotonic() + 600)
    )
    assert again == [before]
    assert pool.spent() == ran


def test_a_search_on_the_table_finds_what_the_search_of_the_model_finds(
    words: list[str], file: Path, tmp_path: Path
) -> None:
    """Judged by the very runs of the model; only the reach is that of the table."""
    data = str(table_of(file).name)
    replayed = [word for word in words if not word.startswith("executor")]
    told = ["executor.name=recorded", f"executor.table={file}", "search.runs=200", f"run.dir={tmp_path}"]
    assert main(["workflow", "search", *replayed, *told, "run.name=replay"]) == 0
    (record,) = records(tmp_path / "replay").values()
    table = table_of(file)
    assert {row.workflow.fingerprint for row in record.rows} <= set(table.programs)
    assert not any(row.failures for row in record.rows)
    winner = table.rows[record.winner.workflow.fingerprint]
    test = table.scores[winner][0][20:]
    assert record.held_out["best"] == pytest.approx(sum(test) / 40)
    assert record.held_out["best"] > record.held_out["start"]
    assert data in words[0]


def test_time_that_is_up_leaves_the_workflows_that_are_whole(words: list[str], tmp_path: Path) -> None:
    with pytest.raises(Exception, match="allow more time"):
        asyncio.run(
            record_tables(
                from_words("workflow", words), tmp_path / "t.json.gz", 10, 1, until=time.monotonic()
            )
        )


def test_a_data_set_that_fails_does_not_end_the_others(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("no task\n")
    both = [words[0].replace("]", f",{tmp_path / 'bad.jsonl'}]"), *words[1:]]
    until = time.monotonic() + 600
    found = record_tables(from_words("workflow", both), tmp_path / "t.json.gz", 4, 1, until=until)
    assert [table.name for table in asyncio.run(found)] == [words[0][6:-1]]


def test_a_recording_that_is_cancelled_leaves_what_it_has(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "WRITE_S", 0.01)
    path = tmp_path / "t.json.gz"

    async def cut() -> None:
        config = from_words("workflow", words)
        task = asyncio.create_task(record_tables(config, path, 10, 999, until=time.monotonic() + 600))
        while not path.exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(asyncio.wait_for(cut(), 60))
    assert table_of(path).workflows


def test_a_task_that_was_lost_once_costs_a_column_and_no_workflow() -> None:
    tasks = {"validation": [str(n) for n in range(100)], "test": [str(n) for n in range(100, 200)]}
    every = [task for ids in tasks.values() for task in ids]
    made = {(task, 0): Payment("s", "w", task, 0, 1.0, 0.0, 1) for task in every}
    lost = {run: payment for run, payment in made.items() if run[0] != "7"}
    few = dict(list(made.items())[:150])
    about = {"name": "d", "setting": "s", "kind": "math", "operators": [], "prompts": {}}
    table = RecordedTable.of([(single_call(), m) for m in (made, lost, few)], tasks=tasks, **about)
    assert table is not None
    assert len(table.scores) == 2
    assert list(table.columns) == [task for task in every if task != "7"]
    assert RecordedTable.of([(single_call(), few)], tasks=tasks, **about) is None


def test_tables_are_written_whole_and_read_back(file: Path, tmp_path: Path) -> None:
    table = table_of(file)
    save_tables([table, table], tmp_path / "two.json.gz")
    assert load_tables(tmp_path / "two.json.gz")[table.name] == table
    (tmp_path / "bad.json.gz").write_bytes((tmp_path / "two.json.gz").read_bytes()[:-40])
    with pytest.raises(Exception, match="no recorded tables"):
        load_tables(tmp_path / "bad.json.gz")


def test_a_table_is_recorded_of_a_model_that_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workflow", "record", str(tmp_path / "tables.json.gz"), "executor.name=simulated"]) == 2
    assert "set executor.name=chat" in capsys.readouterr().err
