"""RAGEN's configurations: verl's keys, and its own for environments that are played in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolwright.verl.flat import FlatTable
from toolwright.verl.translation import Translation

ROLLOUT = "actor_rollout_ref.rollout."
TRAIN, HELD_OUT = "es_manager.train.env_configs.", "es_manager.val.env_configs."
WORLDS = {"sokoban": "Sokoban", "webshop": "Webshop"}
OWN = "write it as an environment of yours: `task.name=path.py:name` (docs/write-your-own-environment.md)"
REFUSED = {
    "frozen_lake": "its lakes are drawn by RAGEN; Gymnasium's own lake is `toolwright train task=gymnasium "
    f"task.params.id=FrozenLake-v1`, or {OWN}",
    "bandit": f"its arms are words of RAGEN's own; {OWN}",
    "countdown": "its numbers come from a file: put each into a prompt, and score it with "
    "`toolwright train task=file reward.function=countdown`",
    "metamathqa": "its questions come from the hub: prepare them with `toolwright data prepare`, and run "
    "`verl.trainer.main_ppo` on the file",
}
# What a tag means where the configuration does not say it: RAGEN's own environments.
TAGS = {"SimpleSokoban": "sokoban", "LargerSokoban": "sokoban", "SokobanDifferentGridVocab": "sokoban"}
TAGS |= {"VisualSimpleSokoban": "sokoban", "WebShop": "webshop", "Countdown": "countdown", "Bandit": "bandit"}
TAGS |= {"FrozenLake": "frozen_lake", "MetamathQA": "metamathqa", "BanditTest": "bandit"}
SETTINGS = {"num_boxes": "num_boxes", "search_depth": "search_depth", "render_mode": "mode"}
SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 3, "search_depth": 300, "render_mode": "text"}  # its defaults
NORMALISED = "agent_proxy.reward_normalization."
KEPT, KEPT_BY = f"{ROLLOUT}rollout_filter_ratio", f"{ROLLOUT}rollout_filter_type"
LENGTHS = ("data.max_prompt_length", "data.max_response_length", f"{ROLLOUT}prompt_length")
BATCH = ("data.train_batch_size", "data.val_batch_size")


def _special(values: Mapping[str, Any], result: Translation) -> None:
    for part in (_world, _turns, _groups, _lengths, _rewards):
        part(values, result)


def _world(values: Mapping[str, Any], result: Translation) -> None:
    tags, others = f"{TRAIN}tags", f"{HELD_OUT}tags"
    named = [str(tag) for tag in values.get(tags) or ["SimpleSokoban"]]
    typed = result.as_typed(tags) or f"{tags}=[SimpleSokoban]"
    kinds = {tag: values.get(f"custom_envs.{tag}.env_type", TAGS.get(tag)) for tag in named}
    if len(named) != 1 or kinds[named[0]] not in WORLDS:
        reason = REFUSED.get(str(kinds[named[0]]), f"there is no such environment; {OWN}")
        result.refuse(f"{typed}: {reason if len(named) == 1 else 'one environment is played in a run'}")
    else:
        result.set("env.env_name", WORLDS[kinds[named[0]]], typed)
        if kinds[named[0]] == "sokoban":
            _sokoban(values, result, named[0])
    if others in values and [str(tag) for tag in values[others]] != named:
        result.near("held-out tasks are of the environment that is trained on", others)
    unread = [key for key in values if key.startswith("custom_envs.")]
    if unread and not all(map(result.says, unread)):
        result.note(
            f"{', '.join(key for key in unread if not result.says(key))}: not used: of an environment "
            "that is not played, or words that the task here has of its own"
        )
    result.read(*unread)


def _sokoban(values: Mapping[str, Any], result: Translation, tag: str) -> None:
    block = f"custom_envs.{tag}.env_config."
    found = {name: values.get(f"{block}{name}", default) for name, default in SOKOBAN.items()}
    typed = {name: result.as_typed(f"{block}{name}") or f"{block}{name}={found[name]}" for name in SOKOBAN}
    room = [int(found["dim_x"]), int(found["dim_y"])]
    result.set("env.sokoban.dim_room", room, f"{typed['dim_x']}, {typed['dim_y']}")
    for name, ours in SETTINGS.items():
        value = min(found[name], 200) if name == "search_depth" else found[name]
        result.set(f"env.sokoban.{ours}", value, typed[name])


def _turns(values: Mapping[str, Any], result: Translation) -> None:
    """RAGEN plays several actions of a turn; here each is a turn of its own."""
    turns, each, mark = (f"agent_proxy.{name}" for name in ("max_turn", "max_actions_per_turn", "action_sep"))
    tag = str((values.get(f"{TRAIN}tags") or ["SimpleSokoban"])[0])
    most = f"custom_envs.{tag}.max_actions_per_traj"
    played = int(values.get(turns, 5)) * int(values.get(each, 5))
    count = min(played, int(values.get(most) or played))
    result.set("env.max_steps", count, result.as_typed(turns, each, most) or f"{turns}=5")
    if int(values.get(each, 5)) > 1:
        result.near(f"a turn makes one move, and there are {count} of them", each, mark)


def _groups(values: Mapping[str, Any], result: Translation) -> None:
    """StarPO-S learns from the groups whose rewards differ most. Here those that differ at all are drawn."""
    share, groups = values.get(KEPT), values.get("es_manager.train.env_groups")
    if share is not None and float(share) < 1 and groups:
        if values.get(KEPT_BY, "std") != "std":
            result.refuse("groups that differ are learned from", KEPT_BY)
        kept = max(1, int(float(share) * int(groups)))
        sources, block = (KEPT, KEPT_BY, "es_manager.train.env_groups"), "algorithm.filter_groups."
        result.near(f"{kept} groups whose rewards differ, where RAGEN takes those that differ most", *sources)
        result.set("data.train_batch_size", kept, *sources)
        result.set(f"{block}enable", True, *sources)
        result.set(f"{block}metric", "seq_final_reward", *sources)
        result.set(f"{block}max_num_gen_batches", -(-int(groups) // kept), *sources)
    for key in (KEPT, KEPT_BY):
        if key in values and not result.says(key):
            result.note("every group is learned from, as it is here", key)


def _lengths(values: Mapping[str, Any], result: Translation) -> None:
    """An attempt is one sequence of `max_model_len`, and an answer in it has `response_length`."""
    whole, answer = f"{ROLLOUT}max_model_len", f"{ROLLOUT}response_length"
    room = int(values.get(whole, 3600)) - int(values.get(answer, 400))
    typed = result.as_typed(whole, answer) or f"{whole}=3600"
    result.set("data.max_prompt_length", room, typed)
    result.set(whole, values.get(whole, 3600), typed)
    result.set(answer, values.get(answer, 400), result.as_typed(answer) or f"{answer}=400")
    for key in (*LENGTHS, *BATCH):
        if key in values:
            result.note("RAGEN's own keys say it", key)


def _rewards(values: Mapping[str, Any], result: Translation) -> None:
    penalty, grouping, method = "es_manager.format_penalty", f"{NORMALISED}grouping", f"{NORMALISED}method"
    if cost := abs(float(values.get(penalty, 0))):
        result.set("actor_rollout_ref.actor.use_invalid_action_penalty", True, penalty)
        result.set("actor_rollout_ref.actor.invalid_action_penalty_coef", cost, penalty)
    by_group = values.get("algorithm.adv_estimator") == "grpo" and values.get(grouping, "state") == "state"
    chosen = values.get(method, "identity")
    if chosen == "identity" or (by_group and chosen in ("mean_std", "mean")):
        for key in (grouping, method):
            if key in values:
                result.note("as it is here: GRPO takes the group's mean off", key)
    else:
        result.near("rewards are compared by the estimator alone", grouping, method)


RAGEN = FlatTable("ragen", _special, on_verl=True)
