"""`custom_reward_function.*`, `reward.*`, `reward_model.*`: what an attempt is worth."""

from __future__ import annotations

from toolwright.verl.config import VerlConfig
from toolwright.verl.table.data import makes_tasks, of_search_r1
from toolwright.verl.table.prime import is_prime
from toolwright.verl.translation import Translation

FUNCTIONS = ("reward.custom_reward_function", "custom_reward_function")
OVERLONG = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
RESPONSE = "actor_rollout_ref.rollout.response_length"
# Blocks of a reward model: where it says so, the model, and the longest sequence that it reads.
MODELS = {"reward.reward_model": "reward.reward_model.model_path", "reward_model": "reward_model.model.path"}
MODEL = "reward.params.reward_model"
# What Search-R1 pays for the form of an attempt, and the argument of ours.
FORMED = {
    "reward_model.structure_format_score": "structure",
    "reward_model.final_format_score": "final",
    "reward_model.retrieval_score": "retrieval",
}


def function(verl: VerlConfig, to: Translation) -> None:
    block = next((name for name in FUNCTIONS if verl[f"{name}.path"] is not None), None)
    if any(verl[f"{name}.enable"] for name in MODELS) and not is_prime(verl):
        return  # `model` says it
    if block is None:
        _by_rule(verl, to)
        return
    name = verl[f"{block}.name"] or "compute_score"
    path = str(verl[f"{block}.path"]).removeprefix("file://").removeprefix("pkg://")
    if path.endswith(".py"):
        verl.lacks(path)
    to.set("reward.function", f"{path}:{name}", f"{block}.path", f"{block}.name")
    for argument, value in (verl[f"{block}.reward_kwargs"] or {}).items():
        key = verl.first(f"{block}.reward_kwargs.{argument}", f"{block}.reward_kwargs")
        to.set(f"reward.params.{name}.{argument}", value, key)


def _by_rule(verl: VerlConfig, to: Translation) -> None:
    """Without a function, verl scores by each row's `data_source`. Its rules count nothing outside of
    `\\boxed{}` and after `####`. Search-R1 compares words, whatever the source."""
    unset = (f"{FUNCTIONS[0]}.path",)
    if makes_tasks(verl):
        to.set("reward.function", None, *unset)
    elif any(verl[key] for key in FORMED):
        to.set("reward.function", "search_r1", *tuple(FORMED))
        for key, ours in FORMED.items():
            to.set(f"reward.params.search_r1.{ours}", float(verl[key]), key)
    elif of_search_r1(verl):
        to.set("reward.function", "em", *unset)
    else:
        to.set("reward.function", "data_source", *unset)
        for name in ("gsm8k", "math"):
            to.set(f"reward.params.{name}.strict", True, *unset)


def model(verl: VerlConfig, to: Translation) -> None:
    """verl's reward is the model's number alone, where there is one."""
    block = next((name for name in MODELS if verl[f"{name}.enable"]), None)
    if block is None or is_prime(verl):
        return
    enabled, path = f"{block}.enable", MODELS[block]
    asking = next((f"{name}.path" for name in FUNCTIONS if verl[f"{name}.path"] is not None), None)
    if asking is not None:
        to.refuse(
            "that function asks the server which verl "
            "starts for the model, and there is none here; leave it out to be scored by a classifier alone; "
            "or leave the model out, and let a language model judge: toolwright.reward.function=judge_model",
            enabled,
            asking,
        )
        return
    if verl[path] is None:
        to.refuse(f"{path} does not say which model", enabled)
        return
    to.set("reward.function", "reward_model", enabled)
    to.set(f"{MODEL}.path", str(verl[path]), path)
    _reach(verl, to, block)


def _reach(verl: VerlConfig, to: Translation, block: str) -> None:
    """Set the longest conversation that the model reads; verl cuts off the end of a longer one."""
    lengths = (f"{block}.rollout.prompt_length", f"{block}.rollout.response_length")
    if block == "reward_model" and verl["reward_model.max_length"] is not None:
        longest = ("reward_model.max_length",)
        to.set(f"{MODEL}.max_tokens", verl.number(longest[0]), *longest)
        to.set(f"{MODEL}.cut", "right", *longest)
    elif all(verl.is_set(key) for key in lengths):
        to.set(f"{MODEL}.max_tokens", sum(verl.number(key) for key in lengths), *lengths)


def overlong(verl: VerlConfig, to: Translation) -> None:
    block = next((name for name in OVERLONG if verl[f"{name}.enable"]), None)
    if block is None:
        named = next((name for name in OVERLONG if verl.is_set(f"{name}.enable")), OVERLONG[0])
        to.set("reward.overlong_buffer", 0.0, f"{named}.enable")
        return
    length, limit = verl.number(f"{block}.len"), verl.number(RESPONSE)
    if length >= limit:
        to.near(f"{verl.as_typed(f'{block}.len')} → {limit - 1}: below {verl.as_typed(RESPONSE)}")
        length = limit - 1
    sources = (f"{block}.enable", f"{block}.len", RESPONSE)
    to.set("reward.overlong_buffer", length / limit, *sources)
    to.set("reward.overlong_penalty", verl[f"{block}.penalty_factor"], f"{block}.penalty_factor")


def longest(verl: VerlConfig, to: Translation) -> None:
    for block in ("reward_model.reward_kwargs", "reward.reward_kwargs"):
        key = f"{block}.max_resp_len"
        if verl[key] is not None and verl[key] != verl[RESPONSE]:
            to.refuse(f"the overlong penalty ends at the limit, {verl.as_typed(RESPONSE)}", key)
