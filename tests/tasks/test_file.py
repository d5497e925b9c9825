"""Task files: what verl's users have, read from Parquet and JSON lines, and errors that can be acted on."""

from __future__ import annotations

import datetime
import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tasks import TaskSet, load, rows


def row(number: int = 1, **changes: Any) -> dict[str, Any]:
    plain = {
        "prompt": [{"role": "user", "content": f"What is {number}+1?"}],
        "data_source": "openai/gsm8k",
        "reward_model": {"style": "rule", "ground_truth": str(number + 1)},
        "extra_info": {"index": number},
    }
    return {key: value for key, value in {**plain, **changes}.items() if value is not ...}


def lines(path: Path, found: list[Any]) -> str:
    path.write_text("".join(json.dumps(item) + "\n" for item in found))
    return str(path)


def from_file(
    train: str | list[str], held_out: str | list[str] | None = None, *, held_out_size: int = 2, **keys: Any
) -> TaskSet:
    config = schema.TaskConfig(
        name="file", train=train, held_out=held_out, held_out_size=held_out_size, **keys
    )
    return load(config, seed=0)


def test_json_lines_and_parquet_give_the_same_tasks(tmp_path: Path) -> None:
    found = [row(n) for n in range(6)]
    a = from_file(lines(tmp_path / "tasks.jsonl", found), held_out_size=2)
    rows.write(tmp_path / "tasks.parquet", found)
    b = from_file(str(tmp_path / "tasks.parquet"), held_out_size=2)
    assert [(t.prompt, t.ground_truth, t.data_source, t.extra_info) for t in [*a.train, *a.held_out]] == [
        (t.prompt, t.ground_truth, t.data_source, t.extra_info) for t in [*b.train, *b.held_out]
    ]
    first = from_file(lines(tmp_path / "tasks.jsonl", found)).train[0]
    assert first.prompt[0]["content"].startswith("What is")
    assert a.scorer == "openai/gsm8k"
    assert set("What is 0+1?6") <= set(a.alphabet)


def test_the_ground_truth_may_be_a_dotted_column_and_the_prompt_a_string(tmp_path: Path) -> None:
    given = [{"prompt": f"{n}?", "data_source": "x", "reward_model.ground_truth": n} for n in range(3)]
    table = pa.Table.from_pylist(given)
    pq.write_table(table, tmp_path / "dotted.parquet")
    tasks = from_file(str(tmp_path / "dotted.parquet"), held_out_size=1)
    task = tasks.train[0]
    assert task.prompt == [{"role": "user", "content": f"{task.ground_truth}?"}]
    assert task.extra_info == {}


def test_parquet_from_data_frames_comes_out_as_plain_json(tmp_path: Path) -> None:
    """Arrays, decimals, dates and the nulls of united structs: what pandas and `datasets` leave behind."""
    table = pa.table(
        {
            "prompt": [
                [
                    {"role": "system", "content": "Be brief.", "tool_calls": None},
                    {"role": "user", "content": "A?"},
                ],
                [
                    {"role": "user", "content": "B?"},
                    {"role": "assistant", "content": None, "tool_calls": ["f"]},
                ],
            ],
            "reward_model": [
                {"ground_truth": {"target": np.array(["a", "b"])}},
                {"ground_truth": {"target": np.array(["c"])}},
            ],
            "extra_info": [
                {"when": datetime.date(2025, 1, 2), "worth": Decimal("1.50"), "raw": b"x"},
                {"when": None, "worth": Decimal("2.00"), "raw": None},
            ],
        }
    )
    pq.write_table(table, tmp_path / "frame.parquet")
    path = str(tmp_path / "frame.parquet")
    first, second = from_file(path, path).train
    assert first.prompt[0] == {"role": "system", "content": "Be brief."}
    assert second.prompt[1] == {"role": "assistant", "tool_calls": ["f"]}
    assert first.ground_truth == {"target": ["a", "b"]}
    assert first.extra_info == {"when": "2025-01-02", "worth": 1.5, "raw": "x"}
    assert second.extra_info["worth"] == 2
    json.dumps([first.ground_truth, first.extra_info, first.prompt])


def test_numpy_values_become_plain_ones() -> None:
    value = {"a": np.array([np.array([1, 2]), np.array([3])], dtype=object), "b": np.float32(0.5), "c": (1,)}
    assert rows.plain(value) == {"a": [[1, 2], [3]], "b": 0.5, "c": [1]}


def test_held_out_tasks_come_from_their_own_file(tmp_path: Path) -> None:
    train = lines(tmp_path / "train.jsonl", [row(n) for n in range(5)])
    test = lines(tmp_path / "test.jsonl", [row(n) for n in range(10, 20)])
    tasks = from_file(train, test, held_out_size=4, train_size=3)
    assert [t.id for t in tasks.train] == ["train.jsonl:1", "train.jsonl:2", "train.jsonl:4"]
    assert len(tasks.held_out) == 4
    assert len(from_file(train, test, held_out_size=128).held_out) == 10


def test_ids_do_not_depend_on_the_folder_and_do_not_clash(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    train = lines(tmp_path / "a" / "data.jsonl", [row(1)])
    test = lines(tmp_path / "b" / "data.jsonl", [row(2)])
    tasks = from_file(train, test)
    assert (tasks.train[0].id, tasks.held_out[0].id) == ("data.jsonl:1", "held_out/data.jsonl:1")


def test_several_files_are_one_set_of_tasks_and_share_no_id(tmp_path: Path) -> None:
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(lines(tmp_path / name / "data.jsonl", [row(n) for n in range(3)]))
    tasks = from_file(paths, [])
    assert [task.id for task in tasks.train] == [f"{n}/data.jsonl:{row}" for n in (1, 2) for row in (1, 2, 3)]
    assert list(tasks.held_out) == []


def test_without_a_second_file_the_held_out_tasks_are_taken_out_of_the_first(tmp_path: Path) -> None:
    path = lines(tmp_path / "t.jsonl", [row(n % 7) for n in range(21)])  # each prompt three times
    tasks = from_file(path, held_out_size=3)
    train = {t.prompt[0]["content"] for t in tasks.train}
    held_out = {t.prompt[0]["content"] for t in tasks.held_out}
    assert not train & held_out
    assert (len(tasks.train), len(tasks.held_out)) == (12, 3)
    with pytest.raises(UserError, match=r"held_out_size=7 .* 7 different prompts"):
        from_file(path, held_out_size=7)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([row(), row(prompt=...)], r"row 2: there is no `prompt`; the row has data_source"),
        ([row(prompt=None)], "row 1: there is no `prompt`"),
        ([row(prompt=[])], "row 1: `prompt` must be .* found an empty list"),
        ([row(prompt=5)], "found int"),
        ([row(prompt=["hello"])], "message 1 of `prompt` must be an object with role and content, found str"),
        ([row(prompt=[{"content": "x"}])], "message 1 of `prompt` needs a role, .* found none"),
        ([row(prompt=[{"role": "robot", "content": "x"}])], "found 'robot'"),
        ([row(prompt=[{"role": "user"}])], "message 1 of `prompt` has no content"),
        ([row(prompt=[{"role": "user", "content": 3}])], "needs a string as content, found int"),
        ([row(extra_info=[1])], "`extra_info` must be an object, found list"),
        ([row(reward_model="5")], "`reward_model` must be an object with `ground_truth`, found str"),
        ([[1, 2]], "begins like a JSON array|expected an object"),
        ([], "has no rows"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, found: list[Any], message: str) -> None:
    path = lines(tmp_path / "tasks.jsonl", found)
    with pytest.raises(UserError, match=message) as error:
        from_file(path, path)
    assert "tasks.jsonl" in str(error.value)


def test_a_missing_file_or_another_kind_of_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file: nowhere.jsonl \(looked in "):
        from_file("nowhere.jsonl")
    with pytest.raises(UserError, match="holds no Parquet, JSON lines or CSV file"):
        from_file(str(tmp_path))
    text = tmp_path / "tasks.txt"
    text.write_text("prompt,answer\n1,2\n")
    with pytest.raises(UserError, match="neither Parquet nor JSON lines: line 1 is not JSON"):
        from_file(str(text))
    binary = tmp_path / "tasks.bin"
    binary.write_bytes(b"\x00\xff\xfe" * 9)
    with pytest.raises(UserError, match="neither Parquet nor JSON lines"):
        from_file(str(binary))
    torn = tmp_path / "torn.parquet"
    torn.write_bytes(b"PAR1" + b"\x00" * 50)
    with pytest.raises(UserError, match="begins like Parquet but cannot be read"):
        from_file(str(torn))
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), empty)
    with pytest.raises(UserError, match="has no rows"):
        from_file(str(empty))
    with pytest.raises(UserError, match=r"needs task.train"):
        load(schema.TaskConfig(name="file"), seed=0)


def test_columns_of_a_flat_file_are_its_extra_info(tmp_path: Path) -> None:
    """A CSV file has no objects. What has a meaning of its own has no other: an agent is shown `extra_info`,
    but never the truth."""
    (tmp_path / "flat.csv").write_text("prompt,answer,level,tools\na?,1,easy,x\nb?,2,hard,x\nc?,3,hard,x\n")
    first = from_file(str(tmp_path / "flat.csv"), params={"answer": "answer"}).train[0]
    assert first.ground_truth in ("1", "2", "3")
    assert first.extra_info == {"level": "easy" if first.ground_truth == "1" else "hard"}
    nested_file = lines(tmp_path / "nested.jsonl", [{**row(n), "level": "easy"} for n in range(4)])
    assert "level" not in from_file(nested_file).train[0].extra_info


def test_text_that_is_not_utf8_is_named_with_the_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(json.dumps(row()).encode() + '\n{"prompt": "Größe?"}\n'.encode("latin-1"))
    with pytest.raises(UserError, match=r"tasks\.jsonl, line 2 is not UTF-8.*iconv -f LATIN1 -t UTF-8"):
        rows.read(path)
    table = tmp_path / "tasks.csv"
    table.write_bytes("prompt\nGröße?\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"tasks\.csv, line 2 is not UTF-8"):
        rows.read(table)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.csv"])
def test_text_with_a_byte_order_mark_is_read_in_its_encoding(
    tmp_path: Path, name: str, encoding: str
) -> None:
    """Spreadsheets save their tables so."""
    text = json.dumps({"prompt": "Größe?"}) if name.endswith("jsonl") else "prompt\nGröße?\n"
    (tmp_path / name).write_bytes(text.encode(encoding))
    assert rows.read(tmp_path / name) == [{"prompt": "Größe?"}]


@pytest.mark.parametrize(("line", "cells"), [("How, why?,because", 3), ("Why?", 1)])
def test_a_csv_line_with_cells_too_many_or_too_few_is_an_error(tmp_path: Path, line: str, cells: int) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text(f'prompt,answer\n"a, b?",2\n\n{line}\n')
    with pytest.raises(UserError, match=rf"tasks\.csv, line 4 has {cells} cells?, the header has 2"):
        rows.read(path)


def test_a_csv_file_whose_header_names_a_column_twice_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_text("prompt,answer,answer\na,1,2\n")
    with pytest.raises(UserError, match=r"tasks\.csv has two columns 'answer'"):
        rows.read(path)


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("depth", [101, 900, 100_000])
@pytest.mark.parametrize("form", ["a line", "an array"])
def test_rows_nested_too_deeply_are_an_error(tmp_path: Path, depth: int, form: str) -> None:
    path = tmp_path / "tasks.jsonl"
    good = json.dumps(row())
    path.write_text(f"{good}\n{nested(depth)}\n" if form == "a line" else f"[{good},\n{nested(depth)}]")
    with pytest.raises(UserError, match=r"tasks\.jsonl.*: lists and objects are nested more than 100 deep"):
        from_file(str(path))


def test_nested_rows_are_read(tmp_path: Path) -> None:
    extra = json.loads(nested(90))
    path = lines(tmp_path / "tasks.jsonl", [row(1), row(2, extra_info=extra)])
    assert from_file(path, path).train[1].extra_info == extra


def test_a_number_that_python_does_not_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(f'{{"prompt": {"9" * 5000}}}\n')
    with pytest.raises(UserError, match=r"line 1 is not JSON \(Exceeds the limit"):
        from_file(str(path))


def test_rows_and_packed_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_ROW", 1000)
    monkeypatch.setattr(rows, "MOST_UNPACKED", 5000)
    long = lines(tmp_path / "long.jsonl", [row(1), row(2, prompt="x" * 1000)])
    with pytest.raises(UserError, match=r"long\.jsonl, line 2 has 1,\d+ characters; a row may have 1,000"):
        from_file(long)
    packed = tmp_path / "bomb.jsonl.gz"
    packed.write_bytes(gzip.compress(b" " * 5001))
    with pytest.raises(UserError, match=r"bomb\.jsonl\.gz has more than 5,000 bytes when unpacked"):
        from_file(str(packed))


def test_a_ground_truth_of_the_wrong_type_is_found_before_the_first_attempt(tmp_path: Path) -> None:
    found = [row(1), row(2, reward_model={"ground_truth": ["3"]})]
    path = lines(tmp_path / "tasks.jsonl", found)
    tasks = from_file(path, path)
    with pytest.raises(UserError, match=r"task tasks.jsonl:2: .* must be a number .* found list \['3'\]"):
        Scorer(schema.Reward(), default=tasks.scorer).check(tasks.train)
    with pytest.raises(
        UserError, match=r"tasks.jsonl:2: .* must be a number for scorer 'numeric', found list"
    ):
        Scorer(schema.Reward(function="numeric"), default=tasks.scorer).check(tasks.train)


def test_an_unknown_data_source_asks_for_a_reward_function(tmp_path: Path) -> None:
    path = lines(tmp_path / "tasks.jsonl", [row(data_source="my/data")])
    tasks = from_file(path, path)
    with pytest.raises(UserError, match=r"'my/data' has none; set reward.function"):
        Scorer(schema.Reward(), default=tasks.scorer)
    Scorer(schema.Reward(function="numeric"), default=tasks.scorer).check(tasks.train)
    path = lines(tmp_path / "unnamed.jsonl", [row(data_source=...)])
    with pytest.raises(UserError, match="they name no data_source"):
        Scorer(schema.Reward(), default=from_file(path, path).scorer)


def test_a_file_of_several_sources_is_scored_by_each_ones_scorer(tmp_path: Path) -> None:
    path = lines(tmp_path / "tasks.jsonl", [row(1), row(2, data_source="digits"), row(3, data_source="mine")])
    tasks = from_file(path, path)
    assert tasks.scorer == "data_source"
    scorer = Scorer(schema.Reward(), default=tasks.scorer)
    scorer.check(tasks.train[:2])
    with pytest.raises(UserError, match=r"tasks.jsonl:3: no scorer is known for data_source 'mine'"):
        scorer.check(tasks.train)


def test_other_words_may_ask_the_files_questions(tmp_path: Path) -> None:
    found = [row(n, extra_info={"question": f"{n} {{and}} 1?"}) for n in range(4)]
    asked = from_file(lines(tmp_path / "tasks.jsonl", found), params={"prompt": "{question} Compute."}).train
    assert all(re.fullmatch(r"\d {and} 1\? Compute\.", t.prompt[0]["content"]) for t in asked), "braces stay"
    with pytest.raises(UserError, match="which is not a text in the row"):
        from_file(str(tmp_path / "tasks.jsonl"), params={"prompt": "{query}"})
