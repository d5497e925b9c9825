"""Command lines of each family, run for three steps with a tiny model on a CPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import tiny
from tests.json_server import json_server
from tests.verl.conftest import tasks
from toolwright.models import huggingface
from toolwright.record import load
from toolwright.verl.command import main_module

pytestmark = pytest.mark.slow

ROLLOUT = "actor_rollout_ref.rollout"
SMALL = [
    *("data.max_response_length=6", f"{ROLLOUT}.n=2", "data.train_batch_size=4"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "toolwright.run.threads=1", "trainer.test_freq=-1"),
]
SOKOBAN = [
    *("env.env_name=Sokoban", "env.max_steps=3", "env.rollout.n=2", "env.seed=1", "trainer.total_epochs=3"),
    *("data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=16", "env.history_length=2"),
    *("data.max_response_length=4", "toolwright.task.train_size=8", "toolwright.task.held_out_size=2"),
    *("toolwright.run.threads=1", "data.max_prompt_length=600", "trainer.n_gpus_per_node=1"),
]
LINES: dict[str, tuple[str, list[str]]] = {
    "GRPO, prompts cut": (
        "verl.trainer.main_ppo",
        [*SMALL, "algorithm.adv_estimator=grpo", "data.truncation=left", "data.max_prompt_length=8"],
    ),
    "GRPO, eight devices fitted into one": (
        "verl.trainer.main_ppo",
        [*SMALL, "algorithm.adv_estimator=grpo", "data.train_batch_size=16", "trainer.n_gpus_per_node=8"],
    ),
    "PPO by Megatron": (
        "verl.trainer.main_ppo",
        [
            *(*SMALL, "--config-name=ppo_megatron_trainer", "algorithm.adv_estimator=gae"),
            *("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", "trainer.device=npu"),
        ],
    ),
    "DAPO": (
        "recipe.dapo.main_dapo",
        [*SMALL, "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.clip_ratio_high=0.28"],
    ),
    "a step ahead": (
        "recipe.one_step_off_policy.main_ppo",
        [*SMALL, "algorithm.adv_estimator=rloo", "rollout.nnodes=1", "rollout.n_gpus_per_node=2"],
    ),
    "SPPO": ("recipe.sppo.main_sppo", SMALL),
    "DPPO": (
        "verl.trainer.main_ppo",
        [*SMALL, "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.policy_loss.loss_mode=dppo_tv"],
    ),
    "PRIME": ("recipe.prime.main_prime", [*SMALL, "data.truncation=left", "data.oversample_factor=2"]),
    "rStar2": (
        "rstar2_agent.main_rstar2_agent",
        [
            *(*SMALL, "algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=4", "augmentation.do_down_sampling=True"),
            "augmentation.down_sampling_config.down_sample_to_n=2",
        ],
    ),
    "verl-agent, GRPO": ("verl.trainer.main_ppo", [*SOKOBAN, "algorithm.adv_estimator=grpo"]),
    "verl-agent, HGPO": ("recipe.hgpo.main_hgpo", [*SOKOBAN, "algorithm.adv_estimator=hgpo"]),
    "verl-agent, GiGPO": ("verl.trainer.main_ppo", [*SOKOBAN, "algorithm.adv_estimator=gigpo"]),
    "verl-agent, a shop": (
        "verl.trainer.main_ppo",
        [*SOKOBAN, "env.env_name=Webshop", "algorithm.adv_estimator=grpo"],
    ),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """One whose context holds the words about tools and several turns."""
    folder = tmp_path / "tiny-model"
    huggingface.save(tiny.decoder(context=2048), folder)
    tiny.characters().save(folder)
    return folder


def run(module: str, words: list[str], *, train: Path, model: Path, out: Path) -> list[dict[str, Any]]:
    paths = [f"data.train_files={train}", f"actor_rollout_ref.model.path={model}"]
    paths += [f"trainer.default_local_dir={out}", "trainer.total_training_steps=3"]
    assert main_module([module, *paths, *words, "--fit"]) == 0
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", LINES)
def test_a_line_takes_three_steps(name: str, train: Path, model: Path, tmp_path: Path) -> None:
    module, words = LINES[name]
    steps = run(module, words, train=train, model=model, out=tmp_path / "run")
    assert steps[-1]["step"] == 3
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def retrieved(_: str, body: dict[str, Any]) -> dict[str, Any]:
    """What a retrieval server with Search-R1's protocol answers."""
    found = [[{"document": {"contents": f"title\nabout {query}"}}] for query in body["queries"]]
    return {"result": found}


@pytest.fixture
def retriever() -> Iterator[str]:
    with json_server(retrieved) as url:
        yield f"{url}/retrieve"


def test_a_line_of_search_r1_trains(train: Path, model: Path, tmp_path: Path, retriever: str) -> None:
    words = [*SMALL, "algorithm.adv_estimator=grpo", "max_turns=2", f"retriever.url={retriever}"]
    words += ["data.max_start_length=200", "data.max_prompt_length=300", f"{ROLLOUT}.n_agent=2"]
    steps = run("verl.trainer.main_ppo", words, train=train, model=model, out=tmp_path / "run")
    assert steps[-1]["step"] == 3


def test_a_file_with_verls_tools_trains(model: Path, tmp_path: Path) -> None:
    schema = {"function": {"name": "calc_gsm8k_reward", "description": "Is it right?"}}
    entry = {"class_name": "verl.tools.gsm8k_tool.Gsm8kTool", "config": {}, "tool_schema": schema}
    file = tmp_path / "tools.yaml"
    file.write_text(yaml.safe_dump({"tools": [entry]}))
    multi = f"{ROLLOUT}.multi_turn"
    words = [*SMALL, "algorithm.adv_estimator=grpo", f"{multi}.enable=True", "data.max_prompt_length=1500"]
    words += [f"{multi}.tool_config_path={file}", f"{multi}.max_user_turns=2"]
    train = tasks(tmp_path / "train.parquet")
    steps = run("verl.trainer.main_ppo", words, train=train, model=model, out=tmp_path / "run")
    assert steps[-1]["step"] == 3
    attempts = load(tmp_path / "run" / "rollouts" / "step_000003.parquet")
    assert "calc_gsm8k_reward" in attempts[0].segments[0].text


def test_a_line_with_a_simulated_user_trains(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "users.yaml"
    entry = {"class_name": "verl.interactions.gsm8k_interaction.Gsm8kInteraction", "config": {}}
    file.write_text(yaml.safe_dump({"interaction": [entry]}))
    multi = f"{ROLLOUT}.multi_turn"
    words = [*SMALL, "algorithm.adv_estimator=grpo", f"{multi}.enable=True", "data.max_prompt_length=500"]
    words += ["data.max_response_length=400"]  # as in verl, what the user says counts too
    words += [f"{multi}.interaction_config_path={file}", f"{multi}.max_user_turns=2"]
    words += ["toolwright.rollout.stop=['0','1','2','3','4']", "trainer.n_gpus_per_node=1"]
    train = tasks(tmp_path / "train.parquet")
    steps = run("verl.trainer.main_ppo", words, train=train, model=model, out=tmp_path / "run")
    assert steps[-1]["step"] == 3
    attempts = load(tmp_path / "run" / "rollouts" / "step_000003.parquet")
    assert any("environment" in [segment.source for segment in one.segments] for one in attempts)
