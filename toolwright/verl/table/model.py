"""`actor_rollout_ref.model.*`: which model, and what verl does to it for memory and speed."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.config import VerlConfig
from toolwright.verl.row import (
    FitChange,
    KeyRow,
    Note,
    Outcome,
    TranslatedSetting,
    TranslationProblem,
    part,
)

MODEL = "actor_rollout_ref.model."
PATH = f"{MODEL}path"
RECOMPUTED = f"{MODEL}enable_gradient_checkpointing"
RANK, ALPHA = f"{MODEL}lora_rank", f"{MODEL}lora_alpha"
TARGETS, ADAPTER = f"{MODEL}target_modules", f"{MODEL}lora_adapter_path"
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
TRAINED, SAMPLED = "actor_rollout_ref.actor.fsdp_config.dtype", "actor_rollout_ref.rollout.dtype"


def path(verl: VerlConfig) -> Iterator[Outcome]:
    if not verl.is_set(PATH) or verl[PATH] is None:
        yield TranslationProblem(f"{PATH} is not set: name a Hugging Face folder")
        return
    yield TranslatedSetting("model.path", str(verl[PATH]), (PATH,))


def precision(verl: VerlConfig) -> Iterator[Outcome]:
    """Weights are kept in float32 in both; what is chosen is the precision of matrix products."""
    key = verl.first(TRAINED, SAMPLED)
    if not verl.is_set(key) and verl.machine.devices == 0:
        yield Note("matrix products in float32, as bfloat16 is slower on a CPU; verl's default is bfloat16")
        yield TranslatedSetting("model.dtype", "float32", (key,))
        return
    if str(verl[key]) not in DTYPES:
        yield TranslationProblem(
            f"{verl.as_typed(key)}: matrix products are in {' or '.join(sorted(set(DTYPES.values())))}"
        )
        return
    dtype = DTYPES[str(verl[key])]
    if verl.fit and dtype == "bfloat16" and verl.machine.devices == 0:
        yield FitChange(f"{key} bfloat16 → float32: on this CPU it is faster")
        dtype = "float32"
    yield TranslatedSetting("model.dtype", dtype, (key,))


def recomputing(verl: VerlConfig) -> Iterator[Outcome]:
    """Only where it is asked for: verl's default saves memory that a small run has."""
    if verl.is_set(RECOMPUTED):
        yield TranslatedSetting("model.gradient_checkpointing", bool(verl[RECOMPUTED]), (RECOMPUTED,))


def adapter(verl: VerlConfig) -> Iterator[Outcome]:
    """verl turns LoRA on by its rank, or by an adapter to go on from."""
    if verl[ADAPTER] is not None:
        yield TranslatedSetting("model.lora.path", str(verl[ADAPTER]), (ADAPTER,))
    if int(verl[RANK] or 0) > 0:
        yield TranslatedSetting("model.lora.rank", int(verl[RANK]), (RANK,))
        yield TranslatedSetting("model.lora.alpha", float(verl[ALPHA]), (ALPHA,))
        yield TranslatedSetting("model.lora.targets", verl[TARGETS], (TARGETS,))


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
        "layers are computed again on the way back; unset: `auto`, since it changes nothing that is learned",
        recomputing,
    ),
    part(RANK, "model.lora.rank", "above 0, an adapter of this rank is learned", adapter),
    part(ALPHA, "model.lora.alpha", "where an adapter is learned", adapter),
    part(TARGETS, "model.lora.targets", "where an adapter is learned", adapter),
    part(ADAPTER, "model.lora.path", "an adapter folder of peft's to go on from", adapter),
]
