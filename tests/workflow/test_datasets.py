"""Data sets for searches: two splits, one scorer, and an error where there is no data."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolwright.cli.data import main as data
from toolwright.config.from_words import from_words
from toolwright.config.schema import Reward
from toolwright.failures import UserError
from toolwright.rewards import Scorer
from toolwright.workflow import datasets
from toolwright.workflow.executors import build_executor

RAW = Path(__file__).parents[1] / "tasks" / "raw"
FILES = {
    "gsm8k": "gsm8k_train.jsonl",
    "math": "math500.jsonl",
    "aime": "aime25.jsonl",
    "humaneval": "HumanEval.jsonl.gz",
    "mbpp": "mbpp.jsonl",
    "hotpotqa": "hotpotqa_validate.jsonl",
    "drop": "drop_validate.jsonl",
}


@pytest.mark.parametrize("name", FILES)
def test_every_data_set_divides_and_has_its_scorer(name: str, tmp_path: Path) -> None:
    known = datasets.ALIASES.get(name, name)
    data(["prepare", known, "--from", str(RAW / FILES[name]), "--out", str(tmp_path)])
    found = datasets.load(name, folder=tmp_path)
    searched, judged = ({task.id for task in tasks} for tasks in (found.validation, found.test))
    assert searched
    assert judged
    assert not searched & judged
    assert found.offers == ({"entry_point", "public_tests"} if name in ("humaneval", "mbpp") else set())
    if not found.offers:  # those about code ask the sandbox, which has tests of its own
        scorer = Scorer(Reward(), default=found.scorer)
        scorer.check([*found.validation, *found.test])
        scorer.close()
    assert datasets.load(name, folder=tmp_path).validation == found.validation


KINDS = {"humaneval": "code", "mbpp": "code", "hotpotqa": "question", "drop": "question"}


@pytest.mark.parametrize("name", FILES)
def test_a_data_set_gets_the_operators_of_its_kind(name: str, tmp_path: Path) -> None:
    known = datasets.ALIASES.get(name, name)
    data(["prepare", known, "--from", str(RAW / FILES[name]), "--out", str(tmp_path)])
    chat = "executor.chat={provider: openai, model: m, base_url: 'http://127.0.0.1:9', price: 0}"
    words = [f"data=[{name}]", f"search.folder={tmp_path}", "search.tasks=1", "executor.name=chat", chat]
    executor = build_executor(from_words("workflow", words), name)
    assert executor.kind == KINDS.get(name, "math")
    assert ("AnswerGenerate" in executor.operators) == (executor.kind == "question")


def test_two_files_are_the_two_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        copy = tmp_path / f"gsm8k_{split}.jsonl"
        copy.write_text((RAW / FILES["gsm8k"]).read_text())
        data(["prepare", "gsm8k", "--from", str(copy), "--out", str(tmp_path)])
    found = datasets.load("gsm8k", folder=tmp_path, validation_size=3, test_size=2)
    assert {task.id.split(":")[0] for task in found.validation} == {"gsm8k_train.parquet"}
    assert {task.id.split(":")[0] for task in found.test} == {"gsm8k_test.parquet"}
    assert (len(found.validation), len(found.test)) == (3, 2)
    with pytest.raises(UserError, match=r"4 tasks of gsm8k to search by, not 9: set search\.tasks=4"):
        datasets.load("gsm8k", folder=tmp_path, validation_size=9)


def test_any_task_file_is_a_data_set(tmp_path: Path) -> None:
    data(["prepare", "gsm8k", "--from", str(RAW / FILES["gsm8k"]), "--out", str(tmp_path)])
    found = datasets.load(str(tmp_path / "gsm8k_train.parquet"))
    assert (found.name, found.scorer) == ("gsm8k_train", "openai/gsm8k")
    assert (len(found.validation), len(found.test)) == (1, 3)


def test_missing_data_is_an_error_that_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="run `toolwright data prepare math500"):
        datasets.load("math", folder=tmp_path)
    with pytest.raises(UserError, match="did you mean 'gsm8k'"):
        datasets.load("gsm8", folder=tmp_path)
    with pytest.raises(UserError, match="no such file"):
        datasets.load("data/nothing.parquet", folder=tmp_path)


def test_public_tests_come_from_the_problem_or_from_aflows_file(tmp_path: Path) -> None:
    data(["prepare", "humaneval", "--from", str(RAW / FILES["humaneval"]), "--out", str(tmp_path)])

    def tests() -> dict[str, list[str]]:
        found = datasets.load("humaneval", folder=tmp_path)
        told = [task.extra_info for task in (*found.validation, *found.test)]
        return {info["entry_point"]: info["public_tests"] for info in told}

    assert tests()["unique"] == ["assert unique([5, 3, 5, 2, 3, 3, 9, 0, 123]) == [0, 2, 3, 5, 9, 123]"]
    (tmp_path / "humaneval_public_test.jsonl").write_text(
        '{"entry_point": "unique", "test": ["assert candidate([1, 1]) == [1]"]}\n'
    )
    assert tests()["unique"] == ["assert candidate([1, 1]) == [1]"]
