"""The warm start: what the assistant says is learned, all else is context, and training goes on from it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from toolwright.agents.demonstration import Demonstrator
from toolwright.batch import Batch
from toolwright.cli import main
from toolwright.config import schema
from toolwright.learner.budget import PassSettings
from toolwright.learner.objective import Likelihood
from toolwright.learner.policy import Policy
from toolwright.models.decoder import Decoder
from toolwright.models.tokenizer import Tokenizer
from toolwright.trainer import building
from toolwright.trainer.supervised import _read
from toolwright.trajectory import Trajectory

from .runs import metrics

SHAPE = ("model.layers=1", "model.width=32", "model.heads=2", "model.kv_heads=2", "model.ffn=64")
TASK = ("task=sort", "task.params.alphabet=abc", "task.params.max_length=4", "task.held_out_size=16")
SMALL = (*SHAPE, *TASK, "model.context=32", "run.threads=1")

# As most models are trained: a newline behind the end of every turn.
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONVERSATION = [
    {"role": "system", "content": "sum"},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "tool", "content": "ok"},
    {"role": "user", "content": "2+2"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "so?"},
]


def sft(runs: Path, *own: str) -> Path:
    assert main(["sft", *SMALL, f"run.dir={runs}", *own]) == 0
    return max((path for path in runs.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)


def as_trajectory(number: int, messages: list[dict[str, Any]], tokenizer: Tokenizer) -> Trajectory:
    return Demonstrator(tokenizer).trajectory(number, messages)


def chatml() -> Tokenizer:
    tokenizer = Tokenizer.characters("012345678+?\nsumok")
    tokenizer.config["chat_template"] = CHATML
    return tokenizer


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("warm")
    return sft(runs, "run.name=warm", "steps=120", "batch=16", "optimizer.lr=1e-2", "rollout.max_tokens=6")


def test_the_loss_falls_and_held_out_accuracy_rises(warm: Path) -> None:
    rows = metrics(warm)
    losses = [row["policy/loss"] for row in rows[1:]]
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert rows[-1]["held_out/accuracy"] > rows[0]["held_out/accuracy"] + 0.4


def test_a_warm_start_leaves_a_run_folder_as_well(warm: Path) -> None:
    for name in ("config.yaml", "command.txt", "metrics.jsonl", "report.html", "model/model.safetensors"):
        assert (warm / name).is_file()


def test_the_same_warm_start_gives_the_same_weights(tmp_path: Path) -> None:
    first, second = (sft(tmp_path, f"run.name={name}", "steps=3") for name in "ab")
    weights = "model/model.safetensors"
    assert (first / weights).read_bytes() == (second / weights).read_bytes()


def test_transformers_loads_it_and_answers_as_we_do(warm: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = (
        kind.from_pretrained(warm / "model") for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "cab<"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    said = model.generate(**prompt, max_new_tokens=6, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(said, skip_special_tokens=True) == "abc"
    assert said[-1] == tokenizer.eos_token_id


def test_training_goes_on_from_its_weights(warm: Path, tmp_path: Path) -> None:
    own = (f"model.path={warm}/model", *TASK, "model.context=32", "run.threads=1", "train.steps=2")
    line = [*own, f"run.dir={tmp_path}", "run.name=on", "rollout.max_tokens=6", "rollout.prompts=4"]
    assert main(["train", *line]) == 0
    rows = metrics(tmp_path / "on")
    assert rows[0]["held_out/accuracy"] == metrics(warm)[-1]["held_out/accuracy"]
    assert all(row["gap/abs_max"] <= 1e-5 for row in rows[1:])
    assert (tmp_path / "on/model/tokenizer.json").read_text() == (warm / "model/tokenizer.json").read_text()


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_demonstrations_may_be_a_file_of_conversations(suffix: str, tmp_path: Path) -> None:
    """With characters that the task does not know: a fresh tokenizer learns them too."""
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "ä?"}, {"role": "assistant", "content": "ö!"}]}
        for _ in range(4)
    ]
    file = tmp_path / f"said.{suffix}"
    if suffix == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)
    run = sft(tmp_path / "runs", f"demonstrations={file}", "steps=30", "batch=4", "optimizer.lr=1e-2")
    assert metrics(run)[-1]["policy/loss"] < 0.2
    tokenizer = Tokenizer.load(run / "model")
    for character in "äö!?":
        assert tokenizer.decode(tokenizer.encode(character)) == character
    assert "null" not in tokenizer.decode(tokenizer.encode("null")), "what is not there has no letters"


def test_a_file_of_conversations_brings_its_tools_and_needs_no_task(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Conversations longer than those of the default task are learned, and no task is attempted."""
    schema = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
    call = {"type": "function", "function": {"name": "look", "arguments": '{"at": "' + 300 * "a" + '"}'}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "b"},
        {"role": "assistant", "content": "c"},
    ]
    row = {"messages": messages, "tools": [{"type": "function", "function": schema}]}
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps(row) + "\n")
    words = [*SHAPE, f"demonstrations={file}", "steps=2", "batch=1", f"run.dir={tmp_path}/runs"]
    assert main(["sft", *words, "run.threads=1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("sft on said, 2 steps")
    assert "1 demonstrations, 0 too long" in said
    assert "step 2/2  loss" in said
    assert "held-out" not in said


def test_a_task_without_a_scorer_can_still_be_demonstrated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "said.jsonl").write_text(json.dumps({"messages": messages}))
    rows = [{"prompt": text, "data_source": "mine"} for text in "ab"]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = ["task=file", f"task.train={tmp_path}/tasks.jsonl", "task.held_out_size=1", *SHAPE, "steps=2"]
    line = [*own, f"demonstrations={tmp_path}/said.jsonl", f"run.dir={tmp_path}/runs", "run.name=x"]
    assert main(["sft", *line]) == 0
    assert "held-out tasks are not attempted: no scorer is known for these tasks" in capsys.readouterr().out
    assert "held_out/accuracy" not in metrics(tmp_path / "runs/x")[-1]


def test_only_what_the_assistant_says_is_learned() -> None:
    tokenizer = chatml()
    made = as_trajectory(0, CONVERSATION, tokenizer)
    assert [(segment.source, segment.text) for segment in made.segments] == [
        ("prompt", "<|system|>sum<|end|>\n<|user|>1+1<|end|>\n<|assistant|>"),
        ("policy", "2<|end|>"),
        ("prompt", "\n<|tool|>ok<|end|>\n<|user|>2+2<|end|>\n<|assistant|>"),
        ("policy", "4<|end|>"),
    ]


def test_a_demonstration_is_token_by_token_what_the_template_writes() -> None:
    """So that what is sampled later, turn by turn, looks the same to the model."""
    tokenizer = chatml()
    made = as_trajectory(0, CONVERSATION, tokenizer)
    whole = tokenizer.encode(tokenizer.render(CONVERSATION[:6], generate=False))
    assert made.tokens == whole[: len(made.tokens)]
    assert tokenizer.decode(whole[len(made.tokens) :]) == "\n", "what follows the last end is nobody's"
    learned = [token for token, ours in zip(made.tokens, made.mask, strict=True) if ours]
    assert learned == tokenizer.encode("2<|end|>4<|end|>")


def test_a_template_that_rewrites_earlier_turns_cannot() -> None:
    """What was said stays as it was said, as it does when an attempt goes on turn by turn."""
    tokenizer, counting = chatml(), chatml()
    counting.config["chat_template"] = "{{ messages | length }}" + CHATML
    plain, counted = (as_trajectory(3, CONVERSATION, one) for one in (tokenizer, counting))
    assert counted.tokens == [*tokenizer.encode("2"), *plain.tokens], "only the prompt's count is there"


def test_the_loss_is_the_mean_over_the_assistants_tokens_however_they_are_split() -> None:
    tokenizer = chatml()
    config = schema.Model(layers=1, width=32, heads=2, kv_heads=2, ffn=64, context=64)
    conversations = [CONVERSATION, CONVERSATION[:3], CONVERSATION[1:3]]
    batch = Batch.pack([as_trajectory(n, c, tokenizer) for n, c in enumerate(conversations)])

    def update(micro_tokens: int) -> tuple[float, Decoder]:
        decoder, _ = building.build_model(config, "012345678+?\nsumok", seed=0)
        optimizer = schema.OptimizerConfig(lr=3e-3)
        passes: PassSettings = {"micro_tokens": micro_tokens, "dtype": torch.float32}
        student = Policy(decoder, optimizer, total_updates=1, temperature=1.0, **passes)
        return student.update(replace(batch, columns={}), Likelihood())["loss"], decoder

    loss, decoder = update(10_000)
    for micro_tokens in (1, 40):
        split, other = update(micro_tokens)
        assert split == pytest.approx(loss, abs=1e-6)
        for mine, theirs in zip(decoder.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert loss == pytest.approx(torch.tensor(float(tokenizer.size)).log().item(), rel=0.1)


def test_text_with_separators_of_lines_in_it_is_one_line_of_json(tmp_path: Path) -> None:
    said = [{"role": "user", "content": "a\u2028b\x85c"}, {"role": "assistant", "content": "d"}]
    file = tmp_path / "said.jsonl"
    file.write_text(json.dumps({"messages": said}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [one.messages for one in _read(file)] == [said]


def test_a_judge_that_fails_at_the_end_does_not_cost_what_was_learned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fragile = Path(__file__).with_name("fragile.py")
    own = [f"run.dir={tmp_path}", "run.name=x", "task=reverse", "steps=2", "batch=4", "task.held_out_size=4"]
    assert main(["sft", *own, f"rollout.agent={fragile}:LostFromTheSecondTimeOn"]) == 2
    assert "none of the 4 held-out attempts could be scored: the dog ate it" in capsys.readouterr().err
    assert (tmp_path / "x/model/model.safetensors").is_file()
