"""`toolwright data`: public data sets become task files, and files can be looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolwright.cli.data import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.tasks import load, rows
from toolwright.tasks.datasets import DATASETS, task_rows
from toolwright.trajectory import Task

RAW = Path(__file__).parent / "raw"

FILES = [
    ("gsm8k", "gsm8k_train.jsonl", "gsm8k_train", 4),
    ("math500", "math500.jsonl", "math500_test", 3),
    ("aime", "aime25.jsonl", "aime25", 3),
    ("humaneval", "HumanEval.jsonl.gz", "humaneval_test", 3),
    ("mbpp", "mbpp.jsonl", "mbpp_test", 3),
    ("mbpp", "mbpp_sanitized.json", "mbpp_sanitized", 3),
    ("mbpp-functions", "mbpp.jsonl", "mbpp-functions_test", 3),
    ("mbpp-functions", "mbpp_sanitized.json", "mbpp-functions_mbpp_sanitized", 3),
    ("hotpotqa", "hotpotqa_validate.jsonl", "hotpotqa_validate", 3),
    ("drop", "drop_validate.jsonl", "drop_validate", 3),
]


def prepared(name: str, file: str, target: str, out: Path) -> list[Task]:
    assert main(["prepare", name, "--from", str(RAW / file), "--out", str(out)]) == 0
    path = str(out / f"{target}.parquet")
    return list(load(schema.TaskConfig(name="file", train=path, held_out=path), seed=0).train)


@pytest.mark.parametrize(("name", "file", "target", "count"), FILES)
def test_every_data_set_becomes_a_task_file(
    name: str, file: str, target: str, count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = prepared(name, file, target, tmp_path)
    assert len(tasks) == count
    assert f"{count} tasks in {tmp_path / target}.parquet" in capsys.readouterr().out
    assert all(task.ground_truth and task.prompt[0]["content"] for task in tasks)
    assert {task.data_source for task in tasks} == {DATASETS.get(name).target().data_source}


@pytest.mark.parametrize(
    ("name", "file", "target"), [f[:3] for f in FILES if f[0] in ("gsm8k", "aime", "drop", "hotpotqa")]
)
def test_data_sets_with_a_scorer_need_no_reward_function(
    name: str, file: str, target: str, tmp_path: Path
) -> None:
    tasks = prepared(name, file, target, tmp_path)
    Scorer(schema.Reward(), default=tasks[0].data_source).check(tasks)


def test_rows_of_each_data_set_are_converted(tmp_path: Path) -> None:
    first = {name: prepared(name, file, target, tmp_path)[0] for name, file, target, _ in FILES[:5]}
    assert first["gsm8k"].ground_truth == "72"
    assert first["gsm8k"].extra_info["split"] == "train"
    assert "####" in first["gsm8k"].prompt[0]["content"]
    assert "\\boxed{}" in first["math500"].prompt[0]["content"]
    assert first["aime"].ground_truth == "70"
    assert first["humaneval"].ground_truth["entry_point"] in first["humaneval"].prompt[0]["content"]
    assert first["mbpp"].ground_truth["tests"][0] in first["mbpp"].prompt[0]["content"]
    drop = prepared(*FILES[-1][:3], tmp_path)
    assert len(drop[-1].ground_truth) > 1  # several answers are right
    assert "Answer:" not in drop[0].prompt[0]["content"]


def test_mbpp_can_ask_as_humaneval_does() -> None:
    row = {
        "task_id": 2,
        "text": "Add two numbers.",
        "code": "def helper():\n    return 0\ndef add(a, b=1, *, c: int = 0):\n    return a + b + c",
        "test_setup_code": "",
        "test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10"],
    }
    [made] = task_rows("mbpp-functions", [row], split="train")
    [plain] = task_rows("mbpp", [row], split="train")
    [asked] = made.pop("prompt")
    assert '```python\ndef add(a, b=1, *, c: int=0):\n    """Add two numbers.' in asked["content"]
    assert "add(1, 2) == 3" in asked["content"]
    assert "add(5, 5)" not in asked["content"], "hidden tests stay hidden"
    assert made == {key: value for key, value in plain.items() if key != "prompt"}


@pytest.mark.parametrize("code", ["add = lambda a, b: a + b", "def add(:\n    pass"])
def test_without_a_declaration_mbpp_asks_in_its_own_words(code: str) -> None:
    row = {
        "task_id": 2,
        "text": "Add.",
        "code": code,
        "test_setup_code": "",
        "test_list": ["assert add(1, 2) == 3"],
    }
    asked = [task_rows(name, [row], split="train")[0]["prompt"] for name in ("mbpp-functions", "mbpp")]
    assert asked[0] == asked[1]


def test_the_hubs_columns_are_understood_as_the_original_ones() -> None:
    hotpot = {
        "id": "1",
        "question": "Who?",
        "answer": "Ann",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 0]},
        "context": {"title": ["A", "B"], "sentences": [["Ann."], ["Bob.", " Cy."]]},
    }
    (row,) = task_rows("hotpotqa", [hotpot], split="validation")
    assert "A: Ann.\n\nB: Bob. Cy." in row["prompt"][0]["content"]
    drop = {
        "passage": "Two cats.",
        "question": "How many?",
        "query_id": "q",
        "answers_spans": {"spans": ["2", "2", "two"], "types": ["number"] * 3},
    }
    (row,) = task_rows("drop", [drop], split="validation")
    assert row["reward_model"]["ground_truth"] == ["2", "two"]
    (row,) = task_rows("aime", [{"id": "0", "problem": "1+1", "answer": 2}], split="test")
    assert row["reward_model"]["ground_truth"] == "2"


def test_several_raw_files_are_prepared_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = [tmp_path / "gsm8k_train.jsonl", tmp_path / "gsm8k_test.jsonl"]
    for file in raw:
        file.write_bytes((RAW / "gsm8k_train.jsonl").read_bytes())
    named = [word for file in raw for word in ("--from", str(file))]
    assert main(["prepare", "gsm8k", *named, "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert (
        "4 questions are in both train and test" in said or "4 questions are in both test and train" in said
    )
    files = (
        f"task.{key}={tmp_path}/gsm8k_{split}.parquet"
        for key, split in (("train", "train"), ("held_out", "test"))
    )
    assert said.endswith(f"{' '.join(files)}\n")
    with pytest.raises(UserError, match="another of the files is gsm8k_train too"):
        main(["prepare", "gsm8k", *named[:2], *named[:2], "--out", str(tmp_path)])
    with pytest.raises(UserError, match="`hub` takes no --from; name the file or its folder"):
        main(["prepare", "hub", *named[:2], "--map", "prompt=question"])


def test_rows_that_are_read_are_not_counted_beforehand(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"those of gsm8k are read; .* set task.train_size=N"):
        main(["prepare", "gsm8k", "--train", "10", "--out", str(tmp_path)])


def test_rows_of_a_data_set_of_ones_own_are_not_counted_either(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"question": "1+1", "answer": "2"}\n')
    columns = ["--map", "prompt=question", "--map", "answer=answer"]
    with pytest.raises(UserError, match=f"those of {file} are read; prepare them all"):
        main(["prepare", "hub", str(file), *columns, "--train", "5", "--out", str(tmp_path)])


def test_a_wrong_raw_file_is_an_error_that_lists_its_columns(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"row 1 is not one of gsm8k: there is no 'question'; .* problem, solution"
    ):
        main(["prepare", "gsm8k", "--from", str(RAW / "math500.jsonl"), "--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_without_a_network_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(UserError, match=r"Name or service not known.*data prepare gsm8k --from FILE"):
        main(["prepare", "gsm8k", "--out", str(tmp_path)])


def test_a_download_gives_one_file_a_split(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: str(RAW / "gsm8k_train.jsonl"))
    assert main(["prepare", "gsm8k", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gsm8k_test.parquet", "gsm8k_train.parquet"]
    assert rows.read(tmp_path / "gsm8k_test.parquet")[0]["extra_info"]["split"] == "test"


def test_show_prints_rows_counts_and_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tasks.jsonl"
    plain = [{"prompt": f"[{n}]?", "data_source": "a" if n else "b", "extra": {"n": n}} for n in range(9)]
    file.write_text("".join(json.dumps(row) + "\n" for row in plain))
    assert main(["show", str(file), "--rows", "2"]) == 0
    shown = capsys.readouterr().out
    assert "[1]?" in shown
    assert "[2]?" not in shown
    assert "9 rows; columns: prompt, data_source, extra" in shown
    assert "8  a" in shown
    with pytest.raises(UserError, match="no such file"):
        main(["show", str(tmp_path / "none.parquet")])


def test_an_invalid_number_of_rows_is_an_error_in_words() -> None:
    for text in ("0", "many"):
        with pytest.raises(UserError, match=f"--train: expected a whole number above 0, found '{text}'"):
            main(["prepare", "countdown", "--train", text])
