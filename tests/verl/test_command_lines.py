"""The command lines that verl's users have: what they become, what they say, and that they train."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.verl.conftest import Line, tasks
from toolwright.config.keys import find
from toolwright.config.schema import Config
from toolwright.verl.command import main

ROOT = Path(__file__).parents[2]
GRPO = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.optim.lr=1e-6", "trainer.n_gpus_per_node=8"]
RLOO = [
    "algorithm.adv_estimator=rloo",
    "actor_rollout_ref.rollout.n=5",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
]
TOOL = "actor_rollout_ref.rollout.tool_config."
TOOLS = [
    "actor_rollout_ref.rollout.name=vllm",
    f"{TOOL}enabled=true",
    f'{TOOL}server_url="http://127.0.0.1:30003"',
    f"{TOOL}max_tool_turns=3",
    f"{TOOL}max_retries=3",
    f"{TOOL}retry_delay=1.0",
    f"{TOOL}timeout=30.0",
    f"{TOOL}max_workers=10",
    f"{TOOL}request_interval=0.1",
]
MEMORY = [
    "actor_rollout_ref.model.enable_gradient_checkpointing=True",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.calculate_log_probs=True",
]
GMPO = [
    f"actor_rollout_ref.actor.{word}"
    for word in ("clip_ratio_low=0.4", "clip_ratio_high=0.4", "loss_mode=geo_mean")
]
SHORT = ["data.max_response_length=4", "trainer.total_training_steps=1"]


@pytest.fixture
def at(train: Path, model: Path, tmp_path: Path) -> list[str]:
    """The paths, which are all that differs."""
    return [
        f"data.train_files={train}",
        f"actor_rollout_ref.model.path={model}",
        f"trainer.default_local_dir={tmp_path / 'run'}",
    ]


@pytest.mark.parametrize("words", [GRPO, RLOO, MEMORY, GMPO])
def test_real_verl_command_lines_translate_without_problems(
    words: list[str], at: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*at, *words, "--fit", "--dry-run"]) == 0
    assert "# command line" in capsys.readouterr().out


def test_tools_are_called_as_the_tool_enabled_verl_does(line: Line) -> None:
    translation = line(*TOOLS)
    verl = {
        "engine.name": "native",
        "rollout.agent": "tool_use",
        "rollout.call_format": "tags",
        "rollout.max_turns": 4,
        "rollout.tool_timeout_s": 30.0,
        "tools.python.url": "http://127.0.0.1:30003",
        "tools.python.max_retries": 3,
        "tools.python.timeout_s": 30.0,
        "tools.python.concurrency": 10,
        "tools.python.request_interval": 0.1,
        "tools.python.retry_delay_s": 1.0,
    }
    assert {key: translation.value(key) for key in verl} == verl
    # What is not there yet is said, and nothing else is wrong.
    there = find(Config, "tools.python.url") is not None
    assert bool(translation.problems) is not there
    assert all(
        "does not have yet" in text or "no agent of that name yet" in text for text in translation.problems
    )


def test_wide_clips_and_the_geometric_mean(line: Line) -> None:
    translation = line(*GMPO)
    found = {"algorithm.loss": "gmpo", "algorithm.clip_low": 0.4, "algorithm.clip_high": 0.4}
    assert {key: translation.value(key) for key in found} == found


@pytest.mark.parametrize("words", [GRPO, RLOO])
def test_real_verl_command_lines_train(words: list[str], at: list[str], tmp_path: Path) -> None:
    test = tasks(tmp_path / "test.parquet", 4)
    assert main([*at, *words, *SHORT, f"data.val_files={test}", "--fit"]) == 0
    run = tmp_path / "run"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == [0, 1]
    assert "toolwright.trainer.main_ppo" in (run / "command.txt").read_text()
    assert (run / "model" / "config.json").is_file()


def test_resume_and_val_only_are_translated(
    at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = f"data.val_files={tasks(tmp_path / 'test.parquet', 4)}"
    words = [*at, *RLOO, test, "data.max_response_length=4", "--fit"]
    assert main([*words, "trainer.total_training_steps=1"]) == 0
    assert main([*words, "trainer.total_training_steps=2"]) == 0
    assert "going on after step 1" in (tmp_path / "run" / "log.txt").read_text()
    capsys.readouterr()
    assert main([*words, "trainer.val_only=True"]) == 0
    assert "accuracy" in capsys.readouterr().out


def test_more_devices_than_there_are_is_an_error(at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algorithm.adv_estimator=grpo", "data.train_batch_size=16", "trainer.n_gpus_per_node=64"]
    assert main([*at, *words]) == 2
    error = capsys.readouterr().err
    assert "trainer.n_gpus_per_node=64 × trainer.nnodes=1 asks for 64 devices" in error
    assert "--fit" in error


def test_fit_scales_the_run_down_and_says_so(line: Line) -> None:
    translation = line(
        "data.train_batch_size=32",
        "trainer.n_gpus_per_node=8",
        "actor_rollout_ref.actor.ppo_mini_batch_size=16",
    )
    assert translation.problems == []
    assert (translation.value("rollout.prompts"), translation.value("update.minibatches")) == (4, 2)
    assert any("data.train_batch_size 32 → 4" in text for text in translation.changes)
    assert any("8 devices → the CPU" in text for text in translation.changes)


def test_show_prints_the_translation_and_stops(
    at: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*at, *GRPO, "--fit", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "algorithm.adv_estimator=grpo" in shown
    assert "algorithm.clip_c=3.0" in shown
    assert "clip_ratio_c=3.0 (verl's default)" in shown
    assert "toolwright train task=file" in shown
    assert not (tmp_path / "run").exists()


def test_mistakes_are_listed_together(at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*at, "data.train_bach_size=3", "algorithm.adv_estimator=grop", "--fit"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("toolwright.trainer.main_ppo: 2 problems in the configuration:")
    assert "Traceback" not in error


def test_a_missing_file_is_named(at: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*at, "data.train_files=nowhere.parquet", "--fit"]) == 2
    assert "no such file: nowhere.parquet" in capsys.readouterr().err
    assert main(["--frobnicate"]) == 2


@pytest.mark.parametrize(
    "word", ["actor_rollout_ref.actor.optim.lr=fast", "algorithm.gamma=[1]", "trainer.total_epochs=-1"]
)
def test_show_refuses_a_value_of_the_wrong_type(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["data.train_files=gone.parquet", "actor_rollout_ref.model.path=./gone", "--show", "--fit"]
    assert main([*words, word]) == 2
    assert word.partition("=")[2].strip("[]") in capsys.readouterr().err


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "toolwright.trainer.main_ppo", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    assert "--fit" in done.stdout


@pytest.mark.parametrize(
    ("settings", "agent"),
    [
        ({}, "single_turn"),
        ({"ENABLE_TOOLS": "true", "MAX_TOOL_TURNS": "2", "TOOL_SERVER_URL": "http://10.0.0.1:1"}, "tool_use"),
        ({"ENABLE_TOOLS": "true", "ENABLE_SEARCH": "true"}, "search"),
    ],
)
def test_the_example_chooses_by_its_environment(
    settings: dict[str, str], agent: str, train: Path, tmp_path: Path
) -> None:
    surroundings = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), **settings}
    surroundings |= {"MODEL": str(tmp_path / "model"), "TRAIN": str(train)}
    script = ROOT / "examples" / "train_with_tools.sh"
    done = subprocess.run(
        [script, "--fit", "--show"], env=surroundings, capture_output=True, text=True, cwd=tmp_path
    )
    assert f"rollout.agent={agent}" in done.stdout, done.stderr
    if agent == "tool_use":
        assert "tools.python.url=http://10.0.0.1:1" in done.stdout
        assert "rollout.max_turns=3" in done.stdout
