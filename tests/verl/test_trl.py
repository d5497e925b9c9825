"""TRL's scripts: options become keys of ours, with TRL's defaults, and each is in one of the four lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verl.conftest import tasks
from toolwright.tasks import rows
from toolwright.verl.flat.trl import TABLES, read_options
from toolwright.verl.translation import Translation
from toolwright.verl.trl_command import main

GRPO = """--model_name_or_path weights/base --dataset_name asked.parquet --num_generations 4 --beta 0.04
    --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --steps_per_generation 8
    --num_iterations 2 --learning_rate 2e-6 --lr_scheduler_type cosine --warmup_ratio 0.1 --max_steps 16
    --temperature 0.9
    --loss_type dr_grpo --scale_rewards none --epsilon 0.2 --epsilon_high 0.28 --mask_truncated_completions
    --reward_funcs accuracy_reward my_rewards.polite --reward_weights 1.0 0.5 --max_completion_length 128
    --use_vllm --vllm_mode colocate --bf16 --gradient_checkpointing --report_to wandb --logging_steps 1
    --output_dir kept/grpo --use_peft --lora_r 16 --lora_alpha 32 --log_completions --seed 7"""
SFT = """--model_name_or_path weights/base --dataset_name talks.parquet --learning_rate 2e-5 --packing
    --max_length 512 --per_device_train_batch_size 2 --gradient_accumulation_steps 8 --max_steps 20
    --output_dir kept/sft --assistant_only_loss --eval_strategy no"""
DPO = """--model_name_or_path weights/base --dataset_name pairs.parquet --beta 0.2 --loss_type sigmoid
    --label_smoothing 0.1 --max_steps 5 --learning_rate 5e-7 --precompute_ref_log_probs
    --output_dir kept/dpo"""
KTO = """--model_name_or_path weights/base --dataset_name marked.parquet --desirable_weight 1.3
    --max_steps 5"""
LINES = {"grpo": GRPO, "sft": SFT, "dpo": DPO, "kto": KTO}
BECOMES = {
    "grpo": {
        "rollout.prompts": 8,  # 4 × 8 completions drawn at once, 4 a prompt
        "update.minibatches": 2,
        "update.epochs": 2,
        "train.steps": 4,  # 16 updates, 2 × 2 of them a round
        "algorithm.aggregate": "seq-mean-token-sum-norm",
        "algorithm.norm_tokens": 128,
        "algorithm.normalize_by_std": False,
        "algorithm.kl.coef": 0.04,
        "algorithm.kl.estimator": "unbiased",  # TRL's default
        "algorithm.clip_high": 0.28,
        "reward.parts.polite": 0.5,
        "reward.params.polite.function": "my_rewards:polite",
        "reward.truncated": "mask",
        "model.lora.rank": 16,
        "run.name": "grpo",
        "run.seed": 7,
    },
    "sft": {"batch": 16, "steps": 20, "optimizer.decay": "linear", "model.context": 512},
    "dpo": {"algorithm.params.dpo.beta": 0.2, "algorithm.params.dpo.label_smoothing": 0.1, "train.steps": 5},
    "kto": {"algorithm.params.kto.desirable_weight": 1.3, "rollout.prompts": 8},
}


@pytest.mark.parametrize("script", LINES)
def test_a_line_becomes_ours(script: str) -> None:
    command, table = TABLES[script]
    result = table.translate(read_options(LINES[script].split()), command=command, fit=True)
    assert result.problems == []
    found = {ours: value for ours, value, _ in result.settings}
    assert {key: found.get(key) for key in BECOMES[script]} == BECOMES[script]


@pytest.mark.parametrize("script", LINES)
def test_every_option_is_in_one_of_the_lists(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([script, *LINES[script].split(), "--show", "--fit"]) == 0
    shown = capsys.readouterr().out
    options = [word[2:] for word in LINES[script].split() if word.startswith("--")]
    assert [option for option in options if option not in shown] == []


def translated(script: str, *words: str, fit: bool = False) -> Translation:
    command, table = TABLES[script]
    line = ["--model_name_or_path", "m", "--assistant_only_loss", *words]
    return table.translate(read_options(line), command=command, fit=fit)


def found(translation: Translation) -> dict[str, Any]:
    return {ours: value for ours, value, _ in translation.settings}


def test_epochs_of_sft_are_epochs_whether_or_not_the_data_is_here(tmp_path: Path) -> None:
    talks = tmp_path / "talks.parquet"
    for _ in range(2):
        ours = found(translated("sft", "--dataset_name", str(talks), "--num_train_epochs", "2.5"))
        assert (ours["epochs"], ours["steps"]) == (2.5, "auto")
        rows.write(talks, [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(20)])
    words = ("--dataset_name", str(talks), "--num_train_epochs", "2", "--warmup_ratio", "0.4")
    assert found(translated("sft", *words))["optimizer.warmup_steps"] == 2  # of 40 / 8 steps
    assert found(translated("sft", *words, "--max_steps", "7"))["steps"] == 7


@pytest.mark.parametrize("script", ["grpo", "sft", "dpo"])
@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["--save_steps", "5", "--save_total_limit", "3"], {"checkpoint.every": 5, "checkpoint.keep": 3}),
        (["--save_steps", "5", "--max_steps", "50"], {"checkpoint.every": 5}),
        (["--save_strategy", "no"], {"checkpoint.every": 0, "checkpoint.minutes": 0}),
        (["--save_strategy", "steps"], {}),
    ],
)
def test_checkpoints_are_written_as_in_trl(script: str, words: list[str], becomes: dict[str, Any]) -> None:
    ours = found(translated(script, "--dataset_name", "d.parquet", *words, fit=True))
    assert {key: ours.get(key) for key in becomes} == becomes
    if "--max_steps" in words:
        assert ours["checkpoint.keep"] >= 10, "TRL keeps all"


def test_a_checkpoint_each_epoch(tmp_path: Path) -> None:
    talks = tmp_path / "talks.parquet"
    rows.write(talks, [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(20)])
    words = ("--dataset_name", str(talks), "--save_strategy", "epoch")
    assert found(translated("sft", *words))["checkpoint.every"] == 3  # 20 rows, 8 in a step


@pytest.mark.parametrize("script", ["grpo", "sft", "dpo"])
def test_a_run_of_ours_is_resumed_and_no_other(script: str, tmp_path: Path) -> None:
    out = tmp_path / "kept" / "mine"
    words = ("--dataset_name", "d.parquet", "--output_dir", str(out), "--resume_from_checkpoint")
    assert "not a run folder of Toolwright" in " ".join(translated(script, *words, fit=True).problems)
    out.mkdir(parents=True)
    (out / "config.yaml").write_text("{}")
    for said in ([], ["true"], [str(out)], [str(out / "checkpoints/step_4")]):
        ours = found(translated(script, *words, *said, fit=True))
        assert (ours["run.dir"], ours["run.name"], ours["run.resume"]) == (str(out.parent), "mine", True)
    assert "run.resume" not in found(translated(script, *words, "false", fit=True))


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grpo", "--num_generation", "4", "--dataset_name", "x", "--show"]) == 2
    assert "did you mean num_generations?" in capsys.readouterr().err
    line = ["--dataset_name", "x", "--num_generations", "3", "--per_device_train_batch_size", "4"]
    assert main(["grpo", *line, "--show"]) == 2
    assert "not a multiple of the 3" in capsys.readouterr().err
    assert main(["grpo", "--dataset_name", "x", "--repetition_penalty", "1.2", "--show"]) == 2
    assert "has no equivalent" in capsys.readouterr().err
    assert main(["nothing"]) == 2


def test_a_config_file_gives_what_the_line_does_not(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("learning_rate: 1.0e-5\nnum_generations: 2\n")
    found = read_options(["--config", str(file), "--num_generations", "6"])
    assert found == {"learning_rate": 1e-5, "num_generations": 6}


@pytest.mark.parametrize("words", [["--num_generations", "eight"], ["--learning_rate", "fast"]])
def test_a_value_of_the_wrong_type_is_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = ["grpo", "--model_name_or_path", "m", "--dataset_name", "d.parquet", "--show", "--fit"]
    assert main([*line, *words]) == 2
    assert words[1] in capsys.readouterr().err


@pytest.mark.slow
def test_scripts_train(model: Path, tmp_path: Path) -> None:
    file = tasks(tmp_path / "train.parquet")
    shared = ["--model_name_or_path", str(model), "--max_steps", "3", "--fit"]
    words = ["--dataset_name", str(file), "--num_generations", "2", "--per_device_train_batch_size", "4"]
    words += ["--max_completion_length", "6", "--output_dir", str(tmp_path / "kept" / "grpo")]
    words += ["--eval_strategy", "no"]
    assert main(["grpo", *shared, *words]) == 0
    assert len((tmp_path / "kept" / "grpo" / "metrics.jsonl").read_text().splitlines()) == 3
    talks = tmp_path / "talks.parquet"
    rows.write(talks, [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(8)])
    words = ["--dataset_name", str(talks), "--per_device_train_batch_size", "4", "--max_length", "64"]
    line = ["sft", *shared, *words, "--output_dir", str(tmp_path / "kept" / "sft"), "--save_steps", "2"]
    assert main(line) == 0
    assert main([*line, "--resume_from_checkpoint", "--max_steps", "4"]) == 0
    assert len((tmp_path / "kept" / "sft" / "metrics.jsonl").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("script", "becomes"),
    [
        (
            "grpo",
            {
                "rollout.max_tokens": 512,
                "algorithm.clip_c": None,
                "algorithm.kl.where": "none",
                "algorithm.aggregate": "token-mean",
                "update.policy.betas": [0.9, 0.999],
                "update.policy.warmup_steps": 0,
                "task.held_out": [],
            },
        ),
        (
            "sft",
            {"optimizer.betas": [0.9, 0.999], "optimizer.warmup_steps": 0, "optimizer.weight_decay": 0.0},
        ),
        ("dpo", {"update.policy.betas": [0.9, 0.999], "algorithm.params.dpo.beta": 0.1, "task.held_out": []}),
    ],
)
def test_what_a_line_does_not_say_is_as_in_trl(script: str, becomes: dict[str, object]) -> None:
    command, table = TABLES[script]
    values = read_options(["--model_name_or_path", "m", "--dataset_name", "d.parquet"])
    found = {ours: value for ours, value, _ in table.translate(values, command=command, fit=True).settings}
    assert {key: found[key] for key in becomes} == becomes


def test_an_adapter_is_trls() -> None:
    command, table = TABLES["grpo"]
    values = read_options(["--model_name_or_path", "m", "--dataset_name", "d.parquet", "--use_peft"])
    result = table.translate(values, command=command, fit=True)
    found = {ours: value for ours, value, _ in result.settings}
    assert (found["model.lora.alpha"], found["model.lora.targets"]) == (32, ["q_proj", "v_proj"])
    assert any("no dropout" in text for text in result.changes)


def test_a_group_may_be_split_over_updates_as_in_trl() -> None:
    command, table = TABLES["grpo"]
    line = ["--model_name_or_path", "m", "--dataset_name", "d.parquet", "--num_generations", "32"]
    line += ["--steps_per_generation", "4", "--gradient_accumulation_steps", "1"]
    result = table.translate(read_options(line), command=command, fit=True)
    found = {ours: value for ours, value, _ in result.settings}
    assert (found["rollout.prompts"], found["update.minibatches"]) == (1, 4)


def test_a_repetition_penalty_of_1_is_none() -> None:
    command, table = TABLES["grpo"]
    line = ["--model_name_or_path", "m", "--dataset_name", "d.parquet", "--repetition_penalty"]
    assert table.translate(read_options([*line, "1.0"]), command=command, fit=True).problems == []
    assert table.translate(read_options([*line, "1.1"]), command=command, fit=True).problems != []


def test_vllms_gap_is_weighed_as_in_trl() -> None:
    command, table = TABLES["grpo"]
    values = read_options(["--model_name_or_path", "m", "--dataset_name", "d.parquet", "--use_vllm"])
    found = {ours: value for ours, value, _ in table.translate(values, command=command, fit=False).settings}
    names = ("mode", "level", "high", "low")
    assert [found[f"algorithm.correction.{name}"] for name in names] == ["mask", "sequence", 3.0, 0.0]


def test_learning_only_the_assistants_turns_is_near_unless_it_is_asked_for() -> None:
    command, table = TABLES["sft"]
    line = ["--model_name_or_path", "m", "--dataset_name", "d.parquet"]
    assert any(
        "every token" in text
        for text in table.translate(read_options(line), command=command, fit=True).changes
    )
    asked = table.translate(read_options([*line, "--assistant_only_loss"]), command=command, fit=False)
    assert asked.problems == []


def test_an_unknown_script_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grop"]) == 2
    assert capsys.readouterr().err == "toolwright trl: unknown script 'grop'; did you mean 'grpo'?\n"


def test_a_line_without_a_data_set_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["grpo", "--model_nam", "x"]) == 2
    error = capsys.readouterr().err
    assert "--dataset_name is missing: a file, a folder or owner/name of the hub" in error
    assert "--model_nam" in error
