"""`critic.*`: there is one where the estimator is `gae`, and it takes part in the actor's minibatches."""

from __future__ import annotations

from toolwright.verl.config import VerlConfig
from toolwright.verl.table.algorithm import has_critic
from toolwright.verl.table.environment import reward_share
from toolwright.verl.table.model import PATH
from toolwright.verl.translation import Translation

ALIKE = {
    "critic.ppo_mini_batch_size": "actor_rollout_ref.actor.ppo_mini_batch_size",
    "critic.ppo_epochs": "actor_rollout_ref.actor.ppo_epochs",
    "critic.model.path": PATH,
}


def clip_value(verl: VerlConfig, to: Translation) -> None:
    """A bound on how far a value moves, in units of the reward."""
    key, share = "critic.cliprange_value", reward_share(verl)
    if not has_critic(verl):
        return
    if share != 1:
        to.near("a tenth of it, as rewards are a tenth", key)
    to.set("algorithm.clip_value", verl[key] if share == 1 else verl[key] * share, key)


def alike(verl: VerlConfig, to: Translation) -> None:
    for mine, actors in ALIKE.items():
        if has_critic(verl) and verl.is_set(mine) and verl[mine] != verl[actors]:
            to.near(f"the critic has the actor's, {verl.as_typed(actors)}", mine)


def presence(verl: VerlConfig, to: Translation) -> None:
    enabled = verl["critic.enable"]
    if enabled is not None and bool(enabled) != has_critic(verl):
        there = "there is one" if has_critic(verl) else "there is none"
        to.note(f"{there}, as algorithm.adv_estimator decides", "critic.enable")


def value_mean(verl: VerlConfig, to: Translation) -> None:
    key = "critic.loss_agg_mode"
    if has_critic(verl) and verl[key] != "token-mean":
        text = f"{verl.as_typed(key)}: the critic's loss is a mean over tokens"
        (to.near if verl.is_set(key) else to.note)(text)
