"""`actor_rollout_ref.model.*`: which model, and what verl does to it for memory and speed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolwright.verl.config import VerlConfig
from toolwright.verl.translation import Translation

MODEL = "actor_rollout_ref.model."
PATH = f"{MODEL}path"
RANK, ALPHA = f"{MODEL}lora_rank", f"{MODEL}lora_alpha"
TARGETS, ADAPTER = f"{MODEL}target_modules", f"{MODEL}lora_adapter_path"
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
HALF = ("float16", "fp16", "half")
TRAINED, SAMPLED = "actor_rollout_ref.actor.fsdp_config.dtype", "actor_rollout_ref.rollout.dtype"
MEGATRON = "actor_rollout_ref.actor.megatron.dtype"
OVERRIDES = f"{MODEL}override_config"
DROPOUTS = ("attention_dropout", "embd_pdrop", "resid_pdrop", "hidden_dropout", "attn_pdrop")
# Names of models that see or hear, but for those whose images are read here.
UNSEEN = re.compile(
    r"^(?!.*(qwen(2|2\.5|3)-vl|smolvlm|idefics3))"
    r".*(?<![a-z])(vl|vlm|vision|omni|llava|internvl|vla|minicpm-[ov])(?![a-z])",
    re.IGNORECASE,
)
FREEZE = "actor_rollout_ref.actor.freeze_vision_tower"
LORA = f"{MODEL}lora."
# Megatron's names of what the hub calls q_proj and so on; its four together are all matrices.
MATRICES = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}


def path(verl: VerlConfig, to: Translation) -> None:
    if not verl.is_set(PATH) or verl[PATH] is None:
        to.refuse(f"{PATH} is not set: name a Hugging Face folder")
        return
    name = str(verl[PATH])
    if UNSEEN.search(name.rstrip("/").rpartition("/")[2].replace("_", "-")):
        to.refuse(
            "a model whose images or sounds are not read here; those of Qwen2-VL to "
            "Qwen3-VL, Idefics3 and SmolVLM are",
            PATH,
        )
    if looks_local(name):
        verl.lacks(name)
    to.set("model.path", name, PATH)


def frozen(verl: VerlConfig, to: Translation) -> None:
    """Unset or false, vision learns with the rest, as in verl."""
    if verl[FREEZE]:
        to.set("model.config.freeze_vision_tower", True, FREEZE)


def looks_local(name: str) -> bool:
    """Return True if this is a folder rather than `owner/name` of the hub."""
    return name.startswith(("/", "~", ".")) or name.count("/") != 1 or Path(name).exists()


def overrides(verl: VerlConfig, to: Translation) -> None:
    """Settings of config.json, by their own names; Megatron has them a block deeper."""
    given = verl[OVERRIDES] or {}
    nested = {
        name: given[name] for name in ("model_config", "moe_config") if isinstance(given.get(name), Mapping)
    }
    for name, block in {"": {k: v for k, v in given.items() if k not in nested}, **nested}.items():
        prefix = f"{OVERRIDES}.{name}." if name else f"{OVERRIDES}."
        for setting, value in block.items():
            _override(to, verl.first(f"{prefix}{setting}", OVERRIDES), setting, value)


def _override(to: Translation, key: str, setting: str, value: Any) -> None:
    if setting in DROPOUTS or setting == "freeze_moe_router":
        if value:
            to.refuse("nothing is dropped or frozen while a policy learns", key)
        else:
            to.note("as it is here", key)
    elif setting != "moe_config":
        to.set(f"model.config.{setting}", value, key)


def heads(verl: VerlConfig, to: Translation) -> None:
    """Heads for several tokens: detached, they learn beside the policy and change nothing of it."""
    key, detached = f"{MODEL}mtp.enable", f"{MODEL}mtp.detach_encoder"
    if not verl[key] or not verl[f"{MODEL}mtp.enable_train"]:
        return
    if verl[detached]:
        to.near("the heads are not trained; the policy learns the same", key)
    else:
        text = "heads that predict several tokens would teach the policy as well, which none does here"
        to.refuse(f"{text}; set {detached}=True", key)


def precision(verl: VerlConfig, to: Translation) -> None:
    """Weights are kept in float32 in both; what is chosen is the precision of matrix products."""
    key = verl.first(TRAINED, MEGATRON, SAMPLED)
    if str(verl[key]) in HALF:
        to.near("matrix products are in bfloat16, or in float32 on a CPU", key)
    if not verl.is_set(key) and verl.machine.devices == 0:
        to.note("matrix products in float32, as bfloat16 is slower on a CPU; verl's default is bfloat16")
        to.set("model.dtype", "float32", key)
        return
    if str(verl[key]) not in (*DTYPES, *HALF):
        to.refuse(f"matrix products are in {' or '.join(sorted(set(DTYPES.values())))}", key)
        return
    dtype = DTYPES.get(str(verl[key]), "bfloat16")
    if verl.fit and dtype == "bfloat16" and verl.machine.devices == 0:
        to.changes.append(f"{key} bfloat16 → float32: on this CPU it is faster")
        dtype = "float32"
    to.set("model.dtype", dtype, key)


def adapter(verl: VerlConfig, to: Translation) -> None:
    """verl turns LoRA on by its rank, or by an adapter to go on from. Megatron's has a block of its own."""
    if int(verl[f"{LORA}rank"] or 0) > 0 and int(verl[RANK] or 0) == 0:
        to.set("model.lora.rank", int(verl[f"{LORA}rank"]), f"{LORA}rank")
        to.set("model.lora.alpha", float(verl[f"{LORA}alpha"]), f"{LORA}alpha")
        named = verl[f"{LORA}target_modules"]
        known = [matrix for name in named for matrix in MATRICES.get(name, (name,))]
        whole = set(named) == set(MATRICES)
        to.set("model.lora.targets", "all-linear" if whole else known, f"{LORA}target_modules")
        return
    if verl[ADAPTER] is not None:
        to.set("model.lora.path", str(verl[ADAPTER]), ADAPTER)
    if int(verl[RANK] or 0) > 0:
        to.set("model.lora.rank", int(verl[RANK]), RANK)
        to.set("model.lora.alpha", float(verl[ALPHA]), ALPHA)
        to.set("model.lora.targets", verl[TARGETS], TARGETS)
