"""What a run decides by itself: lengths and precision by its model, its prompts and the memory there is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from agents.templates import tokenizer

from toolwright.cli import main
from toolwright.config import schema
from toolwright.config.batch import checkpoint_line
from toolwright.failures import UserError
from toolwright.models import huggingface
from toolwright.trainer import building, defaults, memory

from .runs import metrics, rollouts, trained

TOOL = '''
def weather(city: str, day: str = "today") -> str:
    """Tell the weather of a city, as a stranger asks for it who wants to know what to wear.

    Args:
        city: the name of the city, in English, without its country
        day: today or tomorrow
    """
    return "rain"
'''
SHORT = (
    "run.threads=1",
    "rollout.prompts=1",
    "rollout.samples=2",
    "rollout.max_turns=2",
    "reward.function=exact",
)

Run = Callable[..., dict[str, Any]]


def of(folder: Path | None = None, **blocks: dict[str, Any]) -> schema.Config:
    small = {"layers": 1, "width": 32, "heads": 2, "kv_heads": 2, "ffn": 64, "path": folder and str(folder)}
    return schema.Config.model_validate({**blocks, "model": {**small, **blocks.get("model", {})}})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Random weights with a chat template as Qwen 2.5 has it, which says much of tools."""
    made, folder = tokenizer("qwen25"), tmp_path / "model"
    huggingface.save(tiny.decoder(vocab=made.size, context=4096), folder)
    made.save(folder)
    return folder


@pytest.fixture
def run(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """A whole command with a task file and a tool of one's own: status, output, errors, config.yaml."""
    monkeypatch.chdir(tmp_path)
    Path("my_tools.py").write_text(TOOL)
    rows = [
        {"prompt": f"What is the weather in city {n}?", "reward_model": {"ground_truth": "x"}}
        for n in range(6)
    ]
    Path("my.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def command(*own: str, command: str = "train") -> dict[str, Any]:
        files = ["task=file", "task.train=my.jsonl", "task.held_out=my.jsonl", "task.held_out_size=1"]
        line = [*files, f"model.path={model}", "tools.weather.path=my_tools.py:weather", "run.name=x", *own]
        status = main([command, *{word.split("=")[0]: word for word in line}.values()])  # own words win
        said, written = capsys.readouterr(), Path("runs/x/config.yaml")
        config = yaml.safe_load(written.read_text()) if written.is_file() else {}
        return {"status": status, "out": said.out, "err": said.err, "config": config}

    return command


class TestContext:
    def test_auto_context_is_the_longest_prompt_and_an_answer(self) -> None:
        made = defaults.decide(of(), prompt=400, turns=1)
        assert (made.config.model.context, made.config.rollout.max_tokens) == (656, 256)
        assert made.config.task.max_prompt_tokens == 400
        assert "context 656 tokens: longest prompt 400 + answer 256 (model.context)" in made.lines
        assert "answers of up to 256 tokens a turn (rollout.max_tokens)" in made.lines

    def test_every_turn_and_what_is_read_between_two_count(self) -> None:
        made = defaults.decide(of(rollout={"max_tokens": 100, "tool_tokens": 30}), prompt=50, turns=3)
        assert made.config.model.context == 50 + 3 * 100 + 2 * 30
        assert "longest prompt 50 + 3 turns × 100 + 2 × 30 between them" in made.lines[0]

    def test_auto_context_ends_where_the_model_does(self, model: Path) -> None:
        made = defaults.decide(of(model), prompt=4000, turns=8)
        assert (made.config.model.context, made.config.rollout.max_tokens) == (4096, 96)
        assert "context 4,096 tokens, all that the model has: longest prompt 4,000" in made.lines[0]

    def test_prompts_that_no_context_holds_leave_room_for_the_others(self, model: Path) -> None:
        made = defaults.decide(of(model), prompt=9000, turns=1)
        assert made.config.task.max_prompt_tokens == 4096 - 256
        assert "model has no more than 4096 tokens: take a model with a longer context" in made.remedy

    def test_auto_context_is_cut_to_a_power_of_two_if_memory_is_short(self) -> None:
        crowd = {"engine": {"slots": 10**8}, "rollout": {"prompts": 10**8, "samples": 1}}
        made = defaults.decide(of(**crowd), prompt=9000, turns=1)
        context = made.config.model.context
        assert isinstance(context, int)
        assert context < 9256
        assert context.bit_count() == 1
        assert (
            f"context {context:,} tokens, for want of memory beside engine.slots=100000000" in made.lines[0]
        )
        assert "lower engine.slots" in made.remedy

    def test_a_limit_of_all_tokens_is_one_of_the_context(self) -> None:
        made = defaults.decide(of(rollout={"max_total_tokens": 300}), prompt=100, turns=4)
        assert (made.config.model.context, made.config.rollout.max_tokens) == (300, 200)

    def test_what_is_stated_stays(self) -> None:
        stated = of(
            model={"context": 99, "dtype": "bfloat16", "gradient_checkpointing": "ffn"},
            rollout={"max_tokens": 9},
            task={"max_prompt_tokens": 80},
            update={"policy": {"lr": 0.1}, "critic": {"lr": 0.2}, "optimizer_state": "int8"},
        )
        made = defaults.decide(stated, prompt=500, turns=8)
        assert made.config == stated
        assert made.lines == ("bfloat16 on cpu (model.dtype)",)

    def test_more_than_the_model_has_is_reported_and_cut(self, model: Path) -> None:
        made = defaults.decide(of(model, model={"context": 9000}), prompt=10, turns=1)
        assert made.config.model.context == 4096
        assert made.lines[0] == f"model.context=9,000 is more than {model} has: it is 4,096 tokens"

    def test_answers_longer_than_the_model_are_refused(self, model: Path) -> None:
        with pytest.raises(
            UserError, match="max_tokens=5000 leaves no room for a prompt in the 4,096 tokens"
        ):
            defaults.decide(of(model, rollout={"max_tokens": 5000}), prompt=10, turns=1)

    def test_a_server_has_all_that_the_model_has(self, model: Path) -> None:
        made, line = defaults.served(schema.Model(path=str(model)), schema.EngineConfig(slots=4))
        assert (made.context, made.dtype) == (4096, "float32")
        assert line == "context 4,096 tokens (--context), float32 on cpu (--dtype)"

    def test_a_server_has_less_where_memory_is_short(self, model: Path) -> None:
        made, _ = defaults.served(schema.Model(path=str(model)), schema.EngineConfig(slots=10**8))
        assert isinstance(made.context, int)
        assert made.context < 4096


@pytest.mark.parametrize(
    ("kind", "capability", "parameters", "chosen"),
    [
        ("cuda", (9, 0), 135_000_000, "bfloat16"),
        ("cuda", (8, 0), 135_000_000, "bfloat16"),
        ("cuda", (7, 5), 135_000_000, "float32"),
        ("cuda", (9, 0), 300_000, "float32"),
        ("cpu", (0, 0), 135_000_000, "float32"),
    ],
)
def test_bfloat16_on_a_gpu_that_has_it_for_a_model_that_gains_by_it(
    kind: str, capability: tuple[int, int], parameters: int, chosen: str
) -> None:
    assert building.fastest_precision(kind, capability, parameters=parameters) == chosen


class TestRates:
    BILLIONS = {"layers": 32, "width": 4096, "heads": 32, "kv_heads": 32, "ffn": 11008}  # noqa: RUF012

    def rates(self, config: schema.Config) -> tuple[Any, Any]:
        made = defaults.decide(config, prompt=10, turns=1)
        return made.config.update.policy.lr, made.config.update.critic.lr

    def test_auto_rate_depends_on_the_number_of_parameters(self) -> None:
        assert self.rates(of()) == (1e-4, 3e-3)
        assert self.rates(of(model=self.BILLIONS)) == (1e-6, 1e-5)

    def test_auto_rate_of_an_adapter_is_higher(self, model: Path) -> None:
        made = defaults.decide(of(model, model={"lora": {"rank": 4}}), prompt=10, turns=1)
        assert made.config.update.policy.lr == 1e-4
        assert made.lines[-1].startswith("learning rate 0.0001, for an adapter of 0.0")
        assert made.lines[-1].endswith("M parameters (update.policy.lr)")

    def test_what_is_stated_stays(self) -> None:
        stated = {"policy": {"lr": 0.5}, "critic": {"lr": 0.25}}
        assert self.rates(of(update=stated, model=self.BILLIONS)) == (0.5, 0.25)
        made = defaults.decide(of(update=stated), prompt=10, turns=1)
        assert not any("learning rate" in line for line in made.lines)

    def test_auto_rate_of_a_critic_is_told_if_there_is_one(self) -> None:
        made = defaults.decide(of(algorithm={"adv_estimator": "gae"}), prompt=10, turns=1)
        assert made.lines[-1].startswith("the critic's learning rate 0.003, for ")
        assert "critic" not in defaults.decide(of(), prompt=10, turns=1).lines[-1]

    def test_a_critics_rate_that_ruins_a_trained_model_is_warned_of(self, model: Path) -> None:
        weights = model / "model.safetensors"
        header = {"giant": {"dtype": "BF16", "shape": [60_000_000], "data_offsets": [0, 120_000_000]}}
        written = json.dumps(header).encode()
        with weights.open("wb") as file:
            file.write(len(written).to_bytes(8, "little") + written)
            file.truncate(8 + len(written) + 120_000_000)  # no more than its header takes room on the disk
        stated = of(model, update={"critic": {"lr": 3e-3}}, algorithm={"adv_estimator": "gae"})
        _, lines = defaults.with_rates(stated)
        assert lines[-1].startswith("update.critic.lr=0.003 is far above what suits a trained model of 60M")

    def test_auto_rate_of_a_warm_start(self) -> None:
        auto = {"policy": {"lr": "auto"}}
        made = defaults.decide(of(update=auto), prompt=10, turns=1, demonstration=20)
        assert made.config.update.policy.lr == 3e-3
        assert made.lines[-1].endswith("(optimizer.lr)")


def test_passes_are_as_large_as_memory_holds() -> None:
    assert memory.micro_tokens(of(model={"context": 64})) == 16_384
    giant = of(model={"context": 64, "layers": 1000, "width": 1 << 16, "heads": 2})
    assert memory.micro_tokens(giant) == 256


def test_the_first_command_with_a_tool_of_ones_own_trains(run: Run) -> None:
    done = run("train.steps=1", *SHORT)
    assert done["status"] == 0, done["err"]
    lines = done["out"].splitlines()
    [context] = [line for line in lines if line.startswith("context ")]
    assert context.endswith("+ 2 turns × 256 + 1 × 256 between them (model.context)")
    assert "answers of up to 256 tokens a turn (rollout.max_tokens)" in lines
    assert "float32 on cpu (model.dtype)" in lines
    assert [line for line in lines if line.startswith("learning rate 0.0001, for 0.0")]
    assert "a checkpoint every 10 minutes (checkpoint.minutes) and at the end" in lines
    config = done["config"]
    prompt = config["model"]["context"] - 3 * 256
    assert prompt > 256, "which is more than all the context there once was"
    assert config["task"]["max_prompt_tokens"] == config["model"]["context"] - 256
    assert (config["rollout"]["max_tokens"], config["model"]["dtype"]) == (256, "float32")
    assert config["update"]["policy"]["lr"] == 1e-4
    again = run("run.resume=true", "train.steps=2")
    assert again["status"] == 0, again["err"]
    assert again["config"]["model"] == config["model"], "what was decided once stays so"
    assert "(model.context)" not in again["out"]


def test_an_evaluation_and_a_warm_start_decide_as_well(run: Run) -> None:
    done = run(*SHORT, command="eval")
    assert done["status"] == 0, done["err"]
    assert "+ 2 turns × 256 + 1 × 256 between them (model.context)" in done["err"]
    assert isinstance(done["config"]["model"]["context"], int)
    said = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "ja " * 200}]
    Path("said.jsonl").write_text(json.dumps({"messages": said}))
    own = ("run.threads=1", "run.name=warm", "steps=1", "batch=1", "demonstrations=said.jsonl")
    done = run(*own, "rollout.max_turns=1", "rollout.max_tokens=8", command="sft")
    assert done["status"] == 0, done["err"]
    assert "tokens: the longest example has " in done["out"]
    config = yaml.safe_load(Path("runs/warm/config.yaml").read_text())
    assert config["model"]["context"] > 400


def test_explaining_tells_what_a_run_would_decide(run: Run) -> None:
    done = run("--explain", command="config")
    assert done["status"] == 0
    assert yaml.safe_load(done["out"])["model"]["context"] == "auto"
    assert "8 turns × 256 + 7 × 256 between them (model.context)" in done["out"]
    done = run("--explain", "task.train=nowhere.jsonl", command="config")
    assert "# the values of auto are not known yet: no such file: nowhere.jsonl" in done["out"]


def test_prompts_longer_than_the_model_are_answered_with_what_helps(run: Run, model: Path) -> None:
    row = {"prompt": "why " * 5000, "reward_model": {"ground_truth": "x"}}
    Path("my.jsonl").write_text(json.dumps(row))
    done = run(*SHORT)
    assert done["status"] == 2
    assert f"{model} has no more than 4096 tokens: take a model with a longer context" in done["err"]


def test_a_checkpoint_by_time_changes_no_number(tmp_path: Path) -> None:
    """Written after every step or at the end alone, resumed or not: the same run."""
    own = ("train.steps=3", "checkpoint.keep=9")
    often = trained(tmp_path, "run.name=often", "checkpoint.minutes=1e-9", *own)
    never = trained(tmp_path, "run.name=never", "checkpoint.minutes=0", *own)
    assert {path.name for path in (often / "checkpoints").iterdir()} == {"step_1", "step_2", "step_3"}
    assert {path.name for path in (never / "checkpoints").iterdir()} == {"step_3"}
    told = [[t.tokens for t in step] for step in rollouts(often).values()]
    assert told == [[t.tokens for t in step] for step in rollouts(never).values()]
    losses = [[row.get("policy/loss") for row in metrics(one)] for one in (often, never)]
    assert losses[0] == losses[1]


def test_the_run_says_when_it_writes_checkpoints_and_by_which_key() -> None:
    assert checkpoint_line(schema.Checkpoint(every=5)) == (
        "a checkpoint every 5 steps (checkpoint.every), every 10 minutes (checkpoint.minutes) and at the end"
    )
    assert checkpoint_line(schema.Checkpoint(minutes=0)) == (
        "a checkpoint only at the end (checkpoint.minutes)"
    )
