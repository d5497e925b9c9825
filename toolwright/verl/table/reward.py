"""`custom_reward_function.*`, `reward.*`, `reward_model.*`: what an attempt is worth."""

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

FUNCTIONS = ("reward.custom_reward_function", "custom_reward_function")
MANAGERS = ("reward.reward_manager.name", "reward_model.reward_manager")
OVERLONG = (
    "reward_model.overlong_buffer",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward.reward_kwargs.overlong_buffer_cfg",
)
RESPONSE = "actor_rollout_ref.rollout.response_length"


def function(asked: VerlConfig) -> Iterator[Outcome]:
    block = next((name for name in FUNCTIONS if asked[f"{name}.path"] is not None), None)
    if block is None:
        yield TranslatedSetting("reward.function", None, (f"{FUNCTIONS[0]}.path",))
        return
    name = asked[f"{block}.name"] or "compute_score"
    path = str(asked[f"{block}.path"]).removeprefix("file://").removeprefix("pkg://")
    yield TranslatedSetting("reward.function", f"{path}:{name}", (f"{block}.path", f"{block}.name"))


def manager(asked: VerlConfig) -> Iterator[Outcome]:
    key = next((key for key in MANAGERS if asked.says(key) and asked[key] is not None), MANAGERS[0])
    if asked[key] == "batch":
        yield TranslationProblem(
            f"{asked.shown(key)}: a function of a whole batch is f(completions, **columns) here; give it "
            "this form and leave the key out"
        )
    elif asked[key] not in ("naive", "prime", "dapo"):
        yield TranslationProblem(
            f"{asked.shown(key)}: there are no reward managers; write a function and name it"
        )


def overlong(asked: VerlConfig) -> Iterator[Outcome]:
    block = next((name for name in OVERLONG if asked[f"{name}.enable"]), None)
    if block is None:
        yield TranslatedSetting("reward.overlong_buffer", 0.0, (f"{OVERLONG[0]}.enable",))
        return
    length, limit = asked.number(f"{block}.len"), asked.number(RESPONSE)
    if length >= limit:
        yield TranslationProblem(f"{asked.shown(f'{block}.len')} must be below {asked.shown(RESPONSE)}")
        return
    yield TranslatedSetting("reward.overlong_buffer", length / limit, (f"{block}.len", RESPONSE))
    yield TranslatedSetting(
        "reward.overlong_penalty", asked[f"{block}.penalty_factor"], (f"{block}.penalty_factor",)
    )


def longest(asked: VerlConfig) -> Iterator[Outcome]:
    for block in ("reward_model.reward_kwargs", "reward.reward_kwargs"):
        key = f"{block}.max_resp_len"
        if asked[key] is not None and asked[key] != asked[RESPONSE]:
            yield TranslationProblem(
                f"{asked.shown(key)}: the overlong penalty ends at the limit, {asked.shown(RESPONSE)}"
            )


def fusion(asked: VerlConfig) -> Iterator[Outcome]:
    for key in ("reward.sandbox_fusion.url", "reward_model.sandbox_fusion.url", "sandbox_fusion.url"):
        if asked[key] is not None:
            yield Note(
                f"{asked.shown(key)}: code is judged in Toolwright's own sandbox, which speaks that protocol"
            )


MODEL = "there is no reward model; name a function, which may ask one: `custom_reward_function.path`"

ROWS: list[KeyRow] = [
    *(
        part(f"{block}.path", "reward.function", "`path:name`; unset: by each task's `data_source`", function)
        for block in FUNCTIONS
    ),
    *(part(f"{block}.name", "reward.function", "unset: `compute_score`", function) for block in FUNCTIONS),
    *(
        refused(
            f"{block}.reward_kwargs.*", "give the function its arguments itself, as defaults", harmless=({},)
        )
        for block in FUNCTIONS
    ),
    *(
        part(
            key,
            (),
            "`naive`, `prime` and `dapo` need none: a function and the overlong penalty say it",
            manager,
        )
        for key in MANAGERS
    ),
    refused("reward.reward_manager.source", "write a function and name it"),
    refused("reward.reward_manager.module.*", "write a function and name it"),
    *(
        row
        for block in OVERLONG
        for row in (
            part(f"{block}.enable", "reward.overlong_buffer", "false → 0", overlong),
            part(
                f"{block}.len",
                "reward.overlong_buffer",
                "÷ the response length: a part of the limit",
                overlong,
            ),
            part(f"{block}.penalty_factor", "reward.overlong_penalty", "", overlong),
            always(f"{block}.log", "the penalty is one of the parts of a reward in the run folder"),
        )
    ),
    *(
        part(f"{block}.max_resp_len", (), "the response length, or an error", longest)
        for block in ("reward_model.reward_kwargs", "reward.reward_kwargs")
    ),
    refused("reward_model.reward_kwargs.*", "give the function its arguments itself, as defaults"),
    refused("reward.reward_kwargs.*", "give the function its arguments itself, as defaults"),
    *(
        part(f"{block}.url", (), "code is judged in Toolwright's own sandbox", fusion)
        for block in ("reward.sandbox_fusion", "reward_model.sandbox_fusion", "sandbox_fusion")
    ),
    *(
        unused(f"{block}.*", "the sandbox has limits of its own")
        for block in ("reward.sandbox_fusion", "reward_model.sandbox_fusion", "sandbox_fusion")
    ),
    refused("reward_model.enable", MODEL, harmless=(False,)),
    refused("reward.reward_model.enable", MODEL),
    unused("reward_model.*", "there is no reward model"),
    unused("reward.reward_model.*", "there is no reward model"),
    refused("reward_model.reward_loop_source", "write a function and name it"),
    refused("reward_model.reward_loop_module_path", "write a function and name it"),
    refused("reward_model.reward_loop_class_name", "write a function and name it"),
    unused("reward.num_workers", "a function of yours runs in a process of its own"),
    unused("reward_model.num_workers", "a function of yours runs in a process of its own"),
    always("reward_model.launch_reward_fn_async", "a slow reward holds up nothing but its step"),
]
