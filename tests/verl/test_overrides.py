"""verl's words as Hydra reads them, and those that say nothing it knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.verl.conftest import Line
from toolwright.failures import UserError
from toolwright.verl import overrides


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.train_batch_size=8", 8),
        ("+data.train_batch_size=8", 8),
        ("++data.train_batch_size=8", 8),
        ('data.truncation="error"', "error"),
        ("data.truncation='error'", "error"),
        ("data.train_files=['a b','c']", ["a b", "c"]),
        ("data.train_files=~/data/train.parquet", "~/data/train.parquet"),
        ("actor_rollout_ref.rollout.tool_config.server_url=http://127.0.0.1:30003", "http://127.0.0.1:30003"),
        ("data.max_prompt_length=null", None),
        ("actor_rollout_ref.actor.optim.lr=1e-6", 1e-6),
        ("data.shuffle=False", False),
    ],
)
def test_an_override_is_parsed(word: str, value: Any) -> None:
    read = overrides.parse([word])
    assert read.problems == []
    assert list(read.values.values()) == [value]


def test_the_last_value_of_a_key_counts(line: Line) -> None:
    assert line("data.train_batch_size=8", "data.train_batch_size=4").value("rollout.prompts") == 1
    assert overrides.parse(["data.seed=1", "+data.seed=2"]).values == {"data.seed": 2}


def test_a_block_sets_its_keys() -> None:
    read = overrides.parse(["actor_rollout_ref.actor.optim={lr:1e-5,weight_decay:0.1}"])
    assert read.values == {
        "actor_rollout_ref.actor.optim.lr": 1e-5,
        "actor_rollout_ref.actor.optim.weight_decay": 0.1,
    }


def test_a_reference_is_resolved(line: Line) -> None:
    translation = line("data.max_response_length=64", "data.max_prompt_length=${data.max_response_length}")
    assert translation.value("task.max_prompt_tokens") == 64


def test_a_key_of_ours_wins_over_a_translated_one(line: Line) -> None:
    translation = line("toolwright.rollout.prompts=3", "+toolwright.run.seed=5")
    assert translation.words[-2:] == ["rollout.prompts=3", "run.seed=5"]
    assert [word for word in translation.words if word.startswith("rollout.prompts=")] == [
        "rollout.prompts=3"
    ]


def test_a_line_with_images_is_translated(line: Line) -> None:
    words = line(
        "data.image_key=pictures",
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-VL-3B-Instruct",
        "actor_rollout_ref.actor.freeze_vision_tower=True",
    ).words
    assert "task.params.images=pictures" in words
    assert "model.config.freeze_vision_tower=true" in words
    assert "model.path=Qwen/Qwen2.5-VL-3B-Instruct" in words


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("data.train_bach_size=3", "not a key of verl's; did you mean data.train_batch_size?"),
        ("+trainer.foo=1", "trainer.foo=1: not a key of verl's"),
        ("actor_rollout_ref.rollout.lr=1", "did you mean actor_rollout_ref.actor.optim.lr?"),
        ("actor_rollout_ref.rollout.action_stop_tokens=a", "verl has no similar key"),
        ("actor_rollout_ref.agent.max_turns=5", "verl-tool's loop asks its own tool server"),
        ("actor_rollout_ref.actor=1", "a block of keys, not a value"),
        ("grpo", "grpo: not a key=value"),
        ("data.seed=1,2", "several values"),
        ("data.train_batch_size=many", "expected a positive integer"),
        ("trainer.n_gpus_per_node=many", "of the wrong type"),
        # Without an equivalent, and something else would be learned.
        ("actor_rollout_ref.model.exclude_modules=[lm_head]", "name the matrices with an adapter instead"),
        ("algorithm.use_pf_ppo=True", "there is no PF-PPO"),
        ("reward_model.enable=True", "does not say which model"),
        ("data.truncation=top", "expected error, left, right, middle"),
        ("data.video_key=videos", "models here read text and images"),
        ("actor_rollout_ref.model.path=llava-hf/llava-1.5-7b-hf", "images or sounds are not read here"),
        ("algorithm.adv_estimator=tir_optimal_token_baseline", "no such estimator"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=dro", "there is no such loss"),
        ("reward_model.reward_manager=mine", "reward managers are"),
    ],
)
def test_an_override_without_an_equivalent_is_a_problem(line: Line, word: str, message: str) -> None:
    problems = line(word).problems
    assert any(message in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("actor_rollout_ref.model.enable_activation_offload=True", "activations are not offloaded yet"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload=True", "not available yet"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization=0.6", "engine.slots"),
        ("actor_rollout_ref.rollout.calculate_log_probs=True", "always kept"),
        ("trainer.logger=['console','clearml']", "there is no tracker clearml"),
        ("hydra.run.dir=out", "not used"),
        ("hydra.run.dir=<your folder>", "not used"),  # which Hydra's grammar cannot read
        ("actor_rollout_ref.ref.param_offload=False", "not available yet"),
        ("~data.seed", "as if it were not set"),
        ("actor@actor_rollout_ref.actor=megatron_actor", "which of verl's engines"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4", "how ranks share a model"),
        ("actor_rollout_ref.model.override_config.attention_dropout=0.0", "as it is here"),
        ("+ray_kwargs.ray_init.runtime_env.env_vars.A=1", "roles live in this process"),
        ("algorithm.kl_ctrl.kl_coef=0.1", "without effect here"),
    ],
)
def test_an_override_without_effect_is_noted(line: Line, word: str, message: str) -> None:
    translation = line(word)
    assert translation.problems == []
    assert any(message in note for note in translation.notes), translation.notes


@pytest.mark.parametrize(
    "word", ["actor_rollout_ref.model.lora_rank=0", "algorithm.use_pf_ppo=False", "reward_model.enable=False"]
)
def test_verls_default_is_never_a_problem(line: Line, word: str) -> None:
    assert line(word).problems == []


def test_a_file_over_verls_own_is_read(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "hydra: {searchpath: [x]}\ndefaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 4}\n"
    )
    assert overrides.parse(["data.seed=1"], config=mine).values == {
        "data.train_batch_size": 4,
        "data.seed": 1,
    }
    mine.write_text("defaults: [ppo_megatron_trainer, dapo_trainer]\n")
    assert overrides.parse([], config=mine).values == {"reward_model.reward_manager": "dapo"}
    mine.write_text("defaults: [somebodys_trainer]\n")
    with pytest.raises(UserError, match="somebodys_trainer"):
        overrides.parse([], config=mine)
