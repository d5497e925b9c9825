"""`actor_rollout_ref.model.*`: which model, and what verl does to it for memory and speed."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.asked import VerlConfig
from toolwright.verl.row import (
    Changed,
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

MODEL = "actor_rollout_ref.model."
PATH = f"{MODEL}path"
RECOMPUTED = f"{MODEL}enable_gradient_checkpointing"
RANK, ALPHA = f"{MODEL}lora_rank", f"{MODEL}lora_alpha"
TARGETS, ADAPTER = f"{MODEL}target_modules", f"{MODEL}lora_adapter_path"
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
TRAINED, SAMPLED = "actor_rollout_ref.actor.fsdp_config.dtype", "actor_rollout_ref.rollout.dtype"


def path(asked: VerlConfig) -> Iterator[Outcome]:
    if not asked.says(PATH) or asked[PATH] is None:
        yield TranslationProblem(f"{PATH} is not set: name a Hugging Face folder")
        return
    yield TranslatedSetting("model.path", str(asked[PATH]), (PATH,))


def precision(asked: VerlConfig) -> Iterator[Outcome]:
    """Weights are kept in float32 in both; what is chosen is the precision of matrix products."""
    key = asked.first(TRAINED, SAMPLED)
    if not asked.says(key) and asked.machine.devices == 0:
        yield Note("matrix products in float32, as bfloat16 is slower on a CPU; verl's default is bfloat16")
        yield TranslatedSetting("model.dtype", "float32", (key,))
        return
    if str(asked[key]) not in DTYPES:
        yield TranslationProblem(
            f"{asked.shown(key)}: matrix products are in {' or '.join(sorted(set(DTYPES.values())))}"
        )
        return
    dtype = DTYPES[str(asked[key])]
    if asked.fit and dtype == "bfloat16" and asked.machine.devices == 0:
        yield Changed(f"{key} bfloat16 → float32: on this CPU it is faster")
        dtype = "float32"
    yield TranslatedSetting("model.dtype", dtype, (key,))


def recomputing(asked: VerlConfig) -> Iterator[Outcome]:
    """Only where it is asked for: verl's default saves memory that a small run has."""
    if asked.says(RECOMPUTED):
        yield TranslatedSetting("model.gradient_checkpointing", bool(asked[RECOMPUTED]), (RECOMPUTED,))


def adapter(asked: VerlConfig) -> Iterator[Outcome]:
    """verl turns LoRA on by its rank, or by an adapter to go on from."""
    if asked[ADAPTER] is not None:
        yield TranslatedSetting("model.lora.path", str(asked[ADAPTER]), (ADAPTER,))
    if int(asked[RANK] or 0) > 0:
        yield TranslatedSetting("model.lora.rank", int(asked[RANK]), (RANK,))
        yield TranslatedSetting("model.lora.alpha", float(asked[ALPHA]), (ALPHA,))
        yield TranslatedSetting("model.lora.targets", asked[TARGETS], (TARGETS,))


LATER = "is not there yet; it saves memory and changes nothing that is learned"

ROWS: list[KeyRow] = [
    part(PATH, "model.path", "a Hugging Face folder on this machine", path),
    part(
        TRAINED,
        "model.dtype",
        "precision of matrix products; weights stay in float32. Unset on a CPU: `float32`",
        precision,
    ),
    part(SAMPLED, "model.dtype", "the engine has the learner's precision", precision),
    part(
        RECOMPUTED,
        "model.gradient_checkpointing",
        "layers are computed again on the way back; unset: `false`, since it changes nothing that is learned",
        recomputing,
    ),
    unused(f"{MODEL}enable_activation_offload", f"offloading of activations {LATER}"),
    always(f"{MODEL}use_remove_padding", "the learner packs sequences, and computes a group's prompt once"),
    unused(f"{MODEL}use_liger", "a matter of speed"),
    unused(f"{MODEL}use_fused_kernels", "a matter of speed"),
    unused(f"{MODEL}fused_kernel_options.*", "a matter of speed"),
    unused(f"{MODEL}tiled_mlp.*", "a matter of memory"),
    unused(f"{MODEL}use_shm", "files are read where they lie"),
    unused(f"{MODEL}trust_remote_code", "code of a model folder is never run"),
    refused(f"{MODEL}hf_config_path", "the configuration is that of the model folder"),
    refused(f"{MODEL}tokenizer_path", "the tokenizer is that of the model folder"),
    refused(f"{MODEL}custom_chat_template", "the template is that of the model folder: put it there"),
    refused(f"{MODEL}external_lib", "models are read by Toolwright's own code"),
    refused(f"{MODEL}override_config.*", "a model is used as it is: edit its config.json", harmless=({},)),
    part(RANK, "model.lora.rank", "above 0, an adapter of this rank is learned", adapter),
    part(ALPHA, "model.lora.alpha", "where an adapter is learned", adapter),
    part(TARGETS, "model.lora.targets", "where an adapter is learned", adapter),
    refused(f"{MODEL}exclude_modules", "name those that are adapted instead, as `target_modules`"),
    part(ADAPTER, "model.lora.path", "an adapter folder of peft's to go on from", adapter),
    refused(f"{MODEL}lora.*", "that is Megatron's LoRA: set `lora_rank`"),
    refused(f"{MODEL}mtp.*", "there is no multi-token prediction"),
]
