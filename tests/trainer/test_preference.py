"""Runs on answers that the data compares: they learn, resume and fail as any other run does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny

from tests.settings import configure
from toolwright.cli import main
from toolwright.config import schema
from toolwright.models import huggingface
from toolwright.models.tokenizer import Tokenizer
from toolwright.tasks import load as load_task_set
from toolwright.trainer.loop import TrainingLoop, train

from . import pairs
from .runs import MODEL, metrics, rollouts

SMALL = [
    *(f"model.{key}={value}" for key, value in MODEL.items()),
    "task=preferences",
    "task.held_out_size=8",
    "rollout.prompts=8",
    "update.policy.lr=1e-2",
    "train.steps=3",
    "eval.every=0",
    "run.threads=1",
]
ALGORITHMS = ["dpo", "kto", "orpo"]


def words(data: Path, *own: str) -> list[str]:
    return list({word.split("=")[0]: word for word in [*SMALL, f"task.train={data}", *own]}.values())


def configured(data: Path, *own: str) -> schema.Config:
    return configure(words(data, *own))


def trained(data: Path, runs: Path, *own: str) -> Path:
    return train(configured(data, f"run.dir={runs}", *own), command=["toolwright", "train", *own])


def numbers(run: Path) -> list[dict[str, Any]]:
    clocks = ("time/", "throughput/", "use/")
    return [{k: v for k, v in row.items() if not k.startswith(clocks)} for row in metrics(run)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return pairs.written(tmp_path / "pairs.jsonl", pairs.rows())


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_held_out_pairs_are_told_apart_in_the_end(algorithm: str, tmp_path: Path) -> None:
    found = pairs.labelled() if algorithm == "kto" else pairs.rows()
    data = pairs.written(tmp_path / "pairs.jsonl", found)
    run = trained(data, tmp_path, f"algorithm={algorithm}", "train.steps=60", "rollout.prompts=16")
    before, after = (row for row in metrics(run) if "held_out/accuracy" in row)
    assert before["held_out/accuracy"] < 0.8
    assert after["held_out/accuracy"] >= 0.85
    assert after["held_out/margin"] > before["held_out/margin"]
    assert after["held_out/loss"] < before["held_out/loss"]
    steps = metrics(run)[1:]
    assert steps[-1]["policy/preference_accuracy"] > 0.9
    assert max(row["policy/skipped"] for row in steps) == 0
    assert not any(key.startswith(("reward/", "gap/")) for row in steps for key in row)
    for name in ("config.yaml", "metrics.jsonl", "report.html", "model/model.safetensors", "rollouts"):
        assert (run / name).exists()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_run_is_the_unbroken_one_to_the_last_bit(
    algorithm: str, data: Path, tmp_path: Path
) -> None:
    own = (f"algorithm={algorithm}", "update.minibatches=3", "update.epochs=2", "eval.every=2")
    whole = trained(data, tmp_path, *own, "run.name=whole", "train.steps=5")
    trained(data, tmp_path, *own, "run.name=broken", "train.steps=3")
    resumed = trained(data, tmp_path, *own, "run.name=broken", "train.steps=5", "run.resume=true")
    # The last step of what was cut short was evaluated as well.
    ours = [{k: v for k, v in row.items() if "held_out" not in k} for row in numbers(resumed)]
    theirs = [{k: v for k, v in row.items() if "held_out" not in k} for row in numbers(whole)]
    assert ours == theirs
    assert numbers(resumed)[-1] == numbers(whole)[-1]
    weights = "model/model.safetensors"
    assert (resumed / weights).read_bytes() == (whole / weights).read_bytes()


@pytest.mark.parametrize("algorithm", ["dpo", "kto"])
def test_the_reference_is_where_the_run_began(algorithm: str, data: Path, tmp_path: Path) -> None:
    """Before anything has moved, policy and reference agree: log 2 a pair, and half of all answers right."""
    first = metrics(trained(data, tmp_path, f"algorithm={algorithm}", "train.steps=1"))[0]
    assert first["held_out/loss"] == pytest.approx(0.6931472 if algorithm == "dpo" else 0.5, abs=1e-6)
    assert first["held_out/margin"] == pytest.approx(0.0, abs=1e-6)


def test_an_adapter_learns_and_is_all_that_is_saved(data: Path, tmp_path: Path) -> None:
    base, tokenizer = tmp_path / "base", Tokenizer.characters("abcd0123456789")
    huggingface.save(tiny.decoder(vocab=tokenizer.size, context=32, kv_heads=2), base)
    tokenizer.save(base)
    own = ["algorithm=dpo", f"model.path={base}", "model.lora.rank=4", "train.steps=20"]
    run = trained(data, tmp_path / "runs", *own)
    rows = metrics(run)
    assert rows[0]["held_out/margin"] == pytest.approx(0.0, abs=1e-6)
    assert rows[-1]["held_out/loss"] < 0.6
    assert (run / "model/adapter_model.safetensors").is_file()
    assert not (run / "model/model.safetensors").exists()


def test_answers_are_written_as_demonstrations_are_and_only_their_own_turns_count(tmp_path: Path) -> None:
    """The prompt has a turn of the assistant's, and the chosen answer calls a tool."""
    prompt = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "2+2"},
    ]
    called = [
        {"role": "assistant", "content": "<tool>2+2</tool>"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "4"},
    ]
    row = {"prompt": prompt, "chosen": called, "rejected": [{"role": "assistant", "content": "5"}]}
    data = pairs.written(tmp_path / "pairs.jsonl", [row, {**row, "prompt": prompt[2:]}])
    run = trained(
        data,
        tmp_path / "runs",
        "algorithm=dpo",
        "task.held_out_size=1",
        "train.steps=1",
        "rollout.prompts=1",
        "model.context=auto",
    )
    chosen, rejected = rollouts(run)[1]
    assert [s.text.split("<|")[0] for s in chosen.steps] == ["<tool>2+2</tool>", "4"]
    assert [s.text.split("<|")[0] for s in rejected.steps] == ["5"]
    assert "4" in "".join(s.text for s in chosen.segments if s.source == "tool")
    assert chosen.segments[0].tokens[:4] == rejected.segments[0].tokens[:4]


@pytest.mark.parametrize("as_text", [False, True])
def test_a_row_offers_tools_of_its_own(as_text: bool, tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
    call = {"type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    chosen = [{"role": "assistant", "content": "", "tool_calls": [call]}]
    chosen += [{"role": "tool", "content": "4"}, {"role": "assistant", "content": "4"}]
    row = {"prompt": "2+2", "chosen": chosen, "rejected": "5"}
    row |= {"tools": json.dumps(tools) if as_text else tools}
    data = pairs.written(tmp_path / "pairs.jsonl", [row, {**row, "prompt": "1+3", "tools": None}])
    own = ("algorithm=dpo", f"task.held_out={data}", "task.held_out_size=1", "train.steps=1")
    run = trained(data, tmp_path / "runs", *own, "rollout.prompts=2", "model.context=auto")
    prompts = {t.task.prompt[-1]["content"]: t.segments[0].text for t in rollouts(run)[1]}
    assert "look_up" in prompts["2+2"]
    assert "look_up" not in prompts["1+3"]


def test_every_usual_form_of_a_row_is_read(tmp_path: Path) -> None:
    user, good, bad = (
        {"role": "user", "content": "a1"},
        {"role": "assistant", "content": "aa"},
        {"role": "assistant", "content": "bb"},
    )
    forms = [
        {"prompt": "a1", "chosen": "aa", "rejected": "bb"},
        {"prompt": [user], "chosen": [good], "rejected": [bad]},
        {"prompt": "a1", "chosen": [user, good], "rejected": [user, bad]},
        {"chosen": [user, good], "rejected": [user, bad]},
    ]
    for number, form in enumerate(forms):
        lines = pairs.written(tmp_path / f"{number}.jsonl", [form])
        array = tmp_path / f"{number}.json"
        array.write_text(json.dumps([form]))
        table = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([form]), table)
        for path in (lines, array, table):
            own = schema.TaskConfig(name="preferences", train=str(path), held_out=str(path))
            [task] = load_task_set(own, seed=0).train
            assert task.prompt == [user]
            assert task.extra_info == {"chosen": [good], "rejected": [bad]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"chosen": "aa", "rejected": "bb"}, "row 2: there is no `prompt`"),
        ({"prompt": "a1", "chosen": "aa"}, "row 2: there is no `rejected`"),
        ({"prompt": "a1", "chosen": 3, "rejected": "bb"}, "row 2: `chosen` must be a string or a list"),
        (
            {"prompt": "a1", "chosen": [{"role": "user", "content": "x"}], "rejected": "bb"},
            "row 2: `chosen` must begin and end with a message of the assistant",
        ),
        ({"prompt": "a1", "chosen": [{"role": "assistant"}], "rejected": "b"}, "message 1 of `chosen`"),
        ({"prompt": "a1", "completion": "aa", "label": "good"}, "row 2: `label` must be true or false"),
        ({"prompt": "a1", "completion": "aa", "label": True}, "pairs.jsonl:2 has no `chosen`"),
    ],
)
def test_a_bad_row_is_named_and_ends_the_command(
    row: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = pairs.written(tmp_path / "pairs.jsonl", [pairs.rows()[0], row])
    own = ("algorithm=dpo", f"run.dir={tmp_path / 'runs'}", f"task.held_out={data}")
    assert main(["train", *words(data, *own)]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (["algorithm=dpo", "task=sums"], "set task=preferences"),
        (["algorithm=dpo", "algorithm.params.dpo.bata=1"], "did you mean 'beta'"),
        (["algorithm=dpo", "algorithm.params.ppo.clip_low=1"], "algorithm.params.ppo"),
        (["algorithm=dpo", "algorithm.kl.where=loss"], "algorithm.kl.where is for sampled attempts"),
        (["algorithm=dpo", "model.context=4"], "fit into model.context=4"),
        (["algorithm=grpo", "algorithm.loss=dop"], "did you mean 'dpo'"),
    ],
)
def test_what_cannot_work_is_refused(
    own: list[str], said: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(data, f"run.dir={tmp_path / 'runs'}", *own)
    if "task=sums" in own:
        line = [word for word in line if not word.startswith(("task.train=", "model.context="))]
    assert main(["train", *line]) == 2
    assert said in capsys.readouterr().err


def test_pairs_are_single_answers_to_kto_and_unrelated_ones_have_another_prompt(data: Path) -> None:
    loop = TrainingLoop(configured(data, "algorithm=kto"))
    try:
        assert len(loop.train_tasks) == 2 * (40 - 8)
        for task in loop.train_tasks:
            own, unrelated = task.extra_info["answers"]
            letter = task.prompt[0]["content"][0]
            assert (own["messages"][0]["content"] == letter * 2) == bool(own["label"])
            assert unrelated["label"] == 0
    finally:
        loop.close()


def test_all_answers_to_a_held_out_prompt_are_judged(tmp_path: Path) -> None:
    data = pairs.written(tmp_path / "answers.jsonl", pairs.labelled())
    found = load_task_set(schema.TaskConfig(name="preferences", train=str(data), held_out_size=8), seed=0)
    assert sorted(task.extra_info["label"] for task in found.held_out) == [False] * 8 + [True] * 8
    assert len(found.train) == 64


def test_pairs_that_are_too_long_are_skipped_and_counted(tmp_path: Path) -> None:
    long = {"prompt": "a1", "chosen": "a" * 50, "rejected": "bb"}
    data = pairs.written(tmp_path / "pairs.jsonl", [*pairs.rows(), long])
    loop = TrainingLoop(configured(data, "algorithm=dpo"))
    try:
        assert loop.skipped_prompts + loop.skipped_held_out == 1
    finally:
        loop.close()
