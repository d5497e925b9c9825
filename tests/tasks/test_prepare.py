"""`toolwright data prepare` and `mix`: data sets that are made here or mapped by their columns."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from toolwright.cli import main as toolwright
from toolwright.cli.data import main
from toolwright.config import schema
from toolwright.failures import UserError
from toolwright.observe.metrics import Metrics
from toolwright.rewards import Scorer
from toolwright.tasks import load, rows
from toolwright.tasks.datasets import task_rows
from toolwright.tasks.mapped import split_of
from toolwright.trajectory import Task

RAW = Path(__file__).parent / "raw"


def tasks_in(path: Path) -> list[Task]:
    return list(load(schema.TaskConfig(name="file", train=str(path), held_out=str(path)), seed=0).train)


def write_csv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("question,answer\n" + "".join(f'"{q}",{a}\n' for q, a in pairs))
    return path


def test_countdown_is_made_here_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "countdown", "--train", "30", "--test", "5", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    tasks = tasks_in(tmp_path / "countdown_train.parquet")
    assert len(tasks) == 30
    assert f"30 tasks in {tmp_path}/countdown_train.parquet" in shown
    assert "prompts, in characters: shortest" in shown
    assert "#####" in shown
    assert "0 questions are in both train and test" in shown
    assert shown.count("→") == 3
    Scorer(schema.Reward(), default="countdown").check(tasks)
    main(
        ["prepare", "countdown", "--train", "5", "--test", "5", "--set", "numbers=2", "--out", str(tmp_path)]
    )
    assert len(tasks_in(tmp_path / "countdown_train.parquet")[0].ground_truth["numbers"]) == 2
    with pytest.raises(UserError, match=r"has no setting --set number; did you mean 'numbers'\?"):
        main(["prepare", "countdown", "--set", "number=2", "--out", str(tmp_path)])


def test_repeated_questions_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = write_csv(tmp_path / "sums.csv", [("2+2?", "4"), ("3+3?", "6"), ("2+2?", "4")])
    line = ["prepare", "hub", str(raw), "--map", "prompt=question", "--map", "answer=answer"]
    assert main([*line, "--out", str(tmp_path)]) == 0
    assert "train repeats 1 of its 3 questions" in capsys.readouterr().out


def test_search_questions_come_with_a_corpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    raw = RAW / "hotpotqa_validate.jsonl"
    assert main(["prepare", "search-qa", "--from", str(raw), "--out", str(tmp_path)]) == 0
    tasks = tasks_in(tmp_path / "search-qa_hotpotqa_validate.parquet")
    assert tasks[0].ground_truth == {"target": ["yes"]}
    assert "Ruggero Deodato (born" not in tasks[0].prompt[0]["content"]  # it is to be searched for
    Scorer(schema.Reward(), default="em").check(tasks)
    documents = rows.read(tmp_path / "search-qa_corpus.jsonl")
    assert documents[0]["title"] == "Ruggero Deodato"
    assert "for tools.search.corpus" in capsys.readouterr().out
    (row,) = task_rows(
        "search-qa", [{"question": "Who?", "golden_answers": ["Ann"], "data_source": "nq"}], split="train"
    )
    assert row["data_source"] == "searchR1_nq"


def test_conversations_offer_their_tools(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2*3?"},
        {"role": "assistant", "content": "6"},
    ]
    found: list[dict[str, Any]] = [
        {"messages": messages, "answer": "6", "tools": ["calculator"]},
        {
            "question": "And 3*3?",
            "answer": "9",
            "tools": [{"type": "function", "function": {"name": "calc"}}],
        },
    ]
    raw = tmp_path / "raw.jsonl"
    raw.write_text("".join(json.dumps(row) + "\n" for row in found))
    arguments = ["prepare", "multi-turn-tools", "--from", str(raw), "--source", "numeric"]
    assert main([*arguments, "--out", str(tmp_path)]) == 0
    first, second = tasks_in(tmp_path / "multi-turn-tools_raw.parquet")
    assert [message["role"] for message in first.prompt] == ["system", "user"]
    assert (first.extra_info["tools"], second.extra_info["tools"]) == (["calculator"], ["calc"])
    assert {first.data_source, second.data_source} == {"numeric"}
    with pytest.raises(UserError, match="no files on the hub: give your own with --from FILE"):
        main(["prepare", "multi-turn-tools", "--out", str(tmp_path)])


def test_reasoning_gym_makes_and_judges_puzzles(tmp_path: Path) -> None:
    pytest.importorskip("reasoning_gym")
    arguments = ["prepare", "reasoning-gym", "--train", "12", "--test", "6", "--out", str(tmp_path)]
    assert main([*arguments, "--set", "kinds=leg_counting,chain_sum"]) == 0
    tasks = tasks_in(tmp_path / "reasoning-gym_train.parquet")
    assert {task.data_source for task in tasks} == {"reasoning_gym/leg_counting", "reasoning_gym/chain_sum"}
    assert "leg_counting 2" in {task.extra_info["difficulty"] for task in tasks}, "three levels each"
    assert len({task.prompt[0]["content"] for task in tasks}) == len(tasks)
    Scorer(schema.Reward(), default="data_source").check(tasks)
    from toolwright.rewards.builtin.reasoning_gym import reasoning_gym

    for task in tasks:
        right = json.loads(task.ground_truth)["answer"]
        assert reasoning_gym(f"So: <answer>{right}</answer>", task.ground_truth) == 1.0
        assert reasoning_gym("<answer>nothing</answer>", task.ground_truth) < 1.0
    with pytest.raises(UserError, match=r"no data set 'chain_sums'; did you mean 'chain_sum'\?"):
        main([*arguments, "--set", "kinds=chain_sums"])


def test_a_folder_is_mapped_by_its_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "set"
    (place / "data").mkdir(parents=True)
    write_csv(place / "data/train.csv", [("1+1?", "2"), ("2+2?", "4")])
    rows.write(place / "data/test-00000.parquet", [{"question": "1+1?", "answer": "2", "more": {"level": 3}}])
    mapping = ["--map", "prompt=Say {question}", "--map", "answer=answer", "--map", "system=answer"]
    arguments = ["prepare", "hub", str(place), *mapping, "--out", str(tmp_path / "out")]
    assert main([*arguments, "--source", "exact"]) == 0
    first, _ = tasks_in(tmp_path / "out/set_train.parquet")
    assert [message["content"] for message in first.prompt] == ["2", "Say 1+1?"]
    assert (first.ground_truth, first.data_source) == ("2", "exact")
    assert "1 questions are in both" in capsys.readouterr().out
    assert main(arguments) == 0
    assert "the rows have no data source" in capsys.readouterr().out
    one = str(place / "data/test-00000.parquet")
    line = ["prepare", "hub", one, "--map", "prompt=question", "--map", "extra.level=more.level"]
    assert main([*line, "--out", str(tmp_path / "out")]) == 0
    assert tasks_in(tmp_path / "out/test-00000.parquet")[0].extra_info["level"] == 3


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-0.parquet", "train"),
        ("validation.jsonl", "test"),
        ("all.csv", "train"),
        ("trainer/test.csv", "test"),
    ],
)
def test_the_words_of_a_path_tell_the_split(path: str, split: str) -> None:
    assert split_of(path) == split


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--map", "prompt=quest"], r"row 1 of train has no column 'quest'; did you mean 'question'\?"),
        (["--map", "promt=question"], r"--map promt=question: did you mean 'prompt'\?"),
        (["--map", "answer=answer"], "--map prompt=COLUMN is needed"),
        (["--map", "prompt"], "write TARGET=COLUMN"),
    ],
)
def test_a_wrong_mapping_is_one_sentence(words: list[str], told: str, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", [("1+1?", "2")])
    with pytest.raises(UserError, match=told):
        main(["prepare", "hub", str(file), *words, "--out", str(tmp_path)])


@pytest.mark.parametrize("prompt", ["question", "Say {question}"])
def test_a_row_without_a_question_is_an_error_and_not_the_word_none(prompt: str, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "1+1?"}\n{"question": null}\n')
    with pytest.raises(UserError, match="row 2 of train has nothing in its column 'question'"):
        main(["prepare", "hub", str(file), "--map", f"prompt={prompt}", "--out", str(tmp_path)])


def test_answers_of_several_types_are_one_sentence_with_the_column(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"question": "1+1?", "answer": 2}\n{"question": "Who?", "answer": "Ann"}\n')
    with pytest.raises(UserError, match=r"a_train\.parquet: .*`reward_model`.*of different types.*'Ann'"):
        main(
            [
                *("prepare", "hub", str(file), "--map", "prompt=question", "--map", "answer=answer"),
                *("--out", str(tmp_path)),
            ]
        )
    tasks = [{"prompt": "?", "data_source": "exact", "extra_info": {"level": level}} for level in (1, "two")]
    file.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    with pytest.raises(UserError, match=r"a\.jsonl: .*`extra_info`.*of different types"):
        main(["mix", str(file), "--out", str(tmp_path / "mixed.parquet")])


def test_the_command_that_is_printed_can_be_pasted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "my data, née 2024"
    assert main(["prepare", "countdown", "--train", "3", "--test", "3", "--out", str(out)]) == 0
    name, *words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert name == "toolwright"
    assert toolwright([*words, "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task.train"]["value"], found["task.held_out"]["value"]) == (
        f"{out}/countdown_train.parquet",
        f"{out}/countdown_test.parquet",
    )


def test_a_hub_out_of_reach_is_reported_clearly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    def unreachable(*_: object, **__: object) -> list[str]:
        raise ConnectionError("Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", unreachable)
    with pytest.raises(UserError, match=r"hub gave no data set of that name.*name their folder instead"):
        main(["prepare", "hub", "some/set", "--map", "prompt=question", "--out", str(tmp_path)])


def prepared(tmp_path: Path, name: str, count: int, source: str) -> Path:
    write_csv(tmp_path / f"{name}.csv", [(f"{name} {n}?", str(n)) for n in range(count)])
    mapping = ["--map", "prompt=question", "--map", "answer=answer", "--source", source]
    main(["prepare", "hub", str(tmp_path / f"{name}.csv"), *mapping, "--out", str(tmp_path)])
    return tmp_path / f"{name}_train.parquet"


def test_files_are_mixed_in_their_shares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = prepared(tmp_path, "a", 70, "exact"), prepared(tmp_path, "b", 100, "numeric")
    out = tmp_path / "mixed.parquet"
    assert main(["mix", f"{a}:0.7", f"{b}:0.3", "--out", str(out)]) == 0
    mixed = rows.read(out)
    assert [sum(row["data_source"] == source for row in mixed) for source in ("exact", "numeric")] == [70, 30]
    assert len({row["prompt"][0]["content"] for row in mixed}) == 100
    assert "100 tasks in" in capsys.readouterr().out
    main(["mix", f"{a}:0.7", f"{b}:0.3", "--out", str(tmp_path / "again.parquet")])
    assert rows.read(tmp_path / "again.parquet") == mixed
    with pytest.raises(UserError, match="at most 100 can be mixed with these weights"):
        main(["mix", f"{a}:0.7", f"{b}:0.3", "--size", "200", "--out", str(out)])


def test_what_does_not_fit_is_refused_in_one_sentence(tmp_path: Path) -> None:
    a = prepared(tmp_path, "a", 4, "exact")
    main(["prepare", "countdown", "--train", "4", "--test", "1", "--out", str(tmp_path)])
    game, out = tmp_path / "countdown_train.parquet", str(tmp_path / "out.parquet")
    told = r"`reward_model.ground_truth` is an object in the first, text in the second"
    with pytest.raises(UserError, match=told):
        main(["mix", str(a), str(game), "--out", out])
    with pytest.raises(UserError, match="row 1 has no `prompt`"):
        main(["mix", str(a), str(RAW / "gsm8k_train.jsonl"), "--out", out])
    with pytest.raises(UserError, match="the weight of a file is a positive number"):
        main(["mix", f"{a}:0", "--out", out])
    assert not Path(out).exists()


def test_a_prepared_file_is_trained_on(tmp_path: Path) -> None:
    file = prepared(tmp_path, "a", 8, "exact")
    words = [f"task.train={file}", "task=file", "task.held_out_size=2", "train.steps=1", "rollout.prompts=2"]
    words += [
        "rollout.samples=2",
        "rollout.max_tokens=4",
        "model.layers=1",
        "model.width=32",
        "run.threads=1",
    ]
    assert toolwright(["train", *words, f"run.dir={tmp_path}", "run.name=tiny"]) == 0
    assert Metrics.read(tmp_path / "tiny/metrics.jsonl")[-1]["step"] == 1


def test_aflows_file_of_math_is_read_by_the_box_of_its_solutions(tmp_path: Path) -> None:
    row = {
        "problem": "What is $1+1$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": "It is $\\boxed{2}$.",
    }
    file = tmp_path / "math_validate.jsonl"
    file.write_text(json.dumps(row))
    assert main(["prepare", "math500", "--from", str(file), "--out", str(tmp_path)]) == 0
    (task,) = tasks_in(tmp_path / "math500_math_validate.parquet")
    assert task.ground_truth == row["solution"]
    with pytest.raises(UserError, match="no answer"):
        task_rows("math500", [{**row, "solution": "two"}], split="validate")
