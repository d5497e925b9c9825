"""`critic.*`: there is one where the estimator is `gae`, and it takes part in the actor's minibatches."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    always,
    part,
    refused,
    unused,
)
from toolwright.verl.table import optimizer
from toolwright.verl.table.algorithm import has_critic
from toolwright.verl.table.model import PATH

ALIKE = {
    "critic.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "critic.ppo_epochs": "actor_rollout_ref.actor.ppo_epochs",
    "critic.model.path": PATH,
}


def clip_value(asked: VerlConfig) -> Iterator[Outcome]:
    if has_critic(asked):
        yield TranslatedSetting(
            "algorithm.clip_value", asked["critic.cliprange_value"], ("critic.cliprange_value",)
        )


def alike(asked: VerlConfig) -> Iterator[Outcome]:
    for mine, actors in ALIKE.items():
        if has_critic(asked) and asked.says(mine) and asked[mine] != asked[actors]:
            yield TranslationProblem(
                f"{asked.shown(mine)}: the critic has the actor's, {asked.shown(actors)}"
            )


def presence(asked: VerlConfig) -> Iterator[Outcome]:
    wanted = asked["critic.enable"]
    if wanted is not None and bool(wanted) != has_critic(asked):
        there = "there is one" if has_critic(asked) else "there is none"
        yield Note(f"{asked.shown('critic.enable')}: {there}, as algorithm.adv_estimator decides")


def value_mean(asked: VerlConfig) -> Iterator[Outcome]:
    key = "critic.loss_agg_mode"
    if has_critic(asked) and asked[key] != "token-mean":
        text = f"{asked.shown(key)}: the critic's loss is a mean over tokens"
        yield TranslationProblem(text) if asked.says(key) else Note(text)


MEMORY = "one device and one budget for now; a matter of memory and speed"

ROWS: list[KeyRow] = [
    part("critic.enable", (), "there is a critic where the estimator is `gae`", presence),
    *optimizer.rows("critic.", "update.critic", wanted=has_critic),
    part("critic.cliprange_value", "algorithm.clip_value", "", clip_value),
    part("critic.ppo_mini_batch_size", "update.minibatches", "the actor's, or an error", alike),
    part("critic.ppo_epochs", "update.epochs", "the actor's, or an error", alike),
    part(
        "critic.model.path",
        "model.path",
        "the critic begins as the policy: the actor's path, or an error",
        alike,
    ),
    part("critic.loss_agg_mode", (), "the critic's loss is a mean over tokens", value_mean),
    unused("critic.loss_scale_factor", "the critic's loss is a mean over tokens"),
    always("critic.rollout_n", "follows from `rollout.samples`"),
    always("critic.shuffle", "minibatches are drawn at random, by the run's seed"),
    unused("critic.data_loader_seed", "random choices follow from `run.seed`"),
    always("critic.checkpoint.*", "a checkpoint holds everything a run needs"),
    *(
        unused(f"critic.{key}", MEMORY)
        for key in (
            "strategy",
            "fsdp.*",
            "ppo_micro_batch_size",
            "ppo_micro_batch_size_per_gpu",
            "use_dynamic_bsz",
            "ppo_max_token_len_per_gpu",
            "forward_max_token_len_per_gpu",
            "forward_micro_batch_size",
            "forward_micro_batch_size_per_gpu",
            "ulysses_sequence_parallel_size",
        )
    ),
    refused("critic.fsdp.qat.*", "there is no training for quantised weights"),
    unused("critic.model.*", "the critic is the policy's own model with a value for each state"),
    refused("critic.model.lora_rank", "the critic has an adapter where the policy has one", harmless=(None,)),
    refused("critic.model.lora.*", "the critic has an adapter where the policy has one"),
    refused("critic.model.override_config.*", "the critic is the policy's own model", harmless=({},)),
]
