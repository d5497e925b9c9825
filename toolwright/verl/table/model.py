"""`actor_rollout_ref.model.*`: which model, and what verl does to it for memory and speed."""

from __future__ import annotations

from collections.abc import Iterator

from toolwright.verl.asked import Asked
from toolwright.verl.row import Changed, Note, Outcome, Problem, Row, Setting, always, part, refused, unused

MODEL = "actor_rollout_ref.model."
PATH = f"{MODEL}path"
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
TRAINED, SAMPLED = "actor_rollout_ref.actor.fsdp_config.dtype", "actor_rollout_ref.rollout.dtype"


def path(asked: Asked) -> Iterator[Outcome]:
    if not asked.says(PATH) or asked[PATH] is None:
        yield Problem(f"{PATH} is not set: name a Hugging Face folder")
        return
    yield Setting("model.path", str(asked[PATH]), (PATH,))


def precision(asked: Asked) -> Iterator[Outcome]:
    """Weights are kept in float32 in both; what is chosen is the precision of matrix products."""
    key = asked.first(TRAINED, SAMPLED)
    if not asked.says(key) and asked.machine.devices == 0:
        yield Note("matrix products in float32, as bfloat16 is slower on a CPU; verl's default is bfloat16")
        yield Setting("model.dtype", "float32", (key,))
        return
    if str(asked[key]) not in DTYPES:
        yield Problem(
            f"{asked.shown(key)}: matrix products are in {' or '.join(sorted(set(DTYPES.values())))}"
        )
        return
    dtype = DTYPES[str(asked[key])]
    if asked.fit and dtype == "bfloat16" and asked.machine.devices == 0:
        yield Changed(f"{key} bfloat16 → float32: on this CPU it is faster")
        dtype = "float32"
    yield Setting("model.dtype", dtype, (key,))


LATER = "is not there yet; it saves memory and changes nothing that is learned"

ROWS: list[Row] = [
    part(PATH, "model.path", "a Hugging Face folder on this machine", path),
    part(
        TRAINED,
        "model.dtype",
        "precision of matrix products; weights stay in float32. Unset on a CPU: `float32`",
        precision,
    ),
    part(SAMPLED, "model.dtype", "the engine has the learner's precision", precision),
    unused(f"{MODEL}enable_gradient_checkpointing", f"recomputing activations {LATER}"),
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
    refused(f"{MODEL}lora_rank", "LoRA is not there yet: all weights are trained", harmless=(None,)),
    unused(f"{MODEL}lora_alpha", "LoRA is not there yet"),
    unused(f"{MODEL}target_modules", "LoRA is not there yet"),
    unused(f"{MODEL}exclude_modules", "LoRA is not there yet"),
    refused(f"{MODEL}lora_adapter_path", "LoRA is not there yet: merge the adapter into the model first"),
    refused(f"{MODEL}lora.*", "LoRA is not there yet: all weights are trained"),
    refused(f"{MODEL}mtp.*", "there is no multi-token prediction"),
]
