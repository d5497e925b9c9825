"""A description of a model folder in a few lines."""

from __future__ import annotations

from pathlib import Path

from toolwright.models import adapter_folder, huggingface, template_check, weight_files
from toolwright.models.folder import read_json
from toolwright.models.tokenizer import Tokenizer

GIB = 1 << 30


def describe(folder: Path) -> list[tuple[str, str]]:
    """(what, how it is); raises a UserError for a folder that is damaged."""
    if adapter_folder.is_adapter(folder):
        return _of_adapter(folder)
    shape = huggingface.read_shape(folder)
    count = weight_files.parameters(folder)
    reason = huggingface.slow_because(folder)
    tokenizer = Tokenizer.load(folder)
    template_check.check(tokenizer)
    ends = ", ".join(tokenizer.end_marks)
    rows = [("architecture", shape.family), ("parameters", f"{count:,}")]
    if reason is None:
        heads = f"{shape.heads} heads of {shape.head_dim}, {shape.kv_heads} for keys and values"
        rows.append(("shape", f"{shape.layers} layers, {shape.width} wide, {heads}"))
        if shape.experts is not None:
            of_token = f"{shape.experts.used} of {shape.experts.count} for a token, {shape.experts.ffn} wide"
            active = count - shape.idle_parameters
            rows.append(("experts", f"{of_token}: {active:,} parameters are active"))
    chat = "with" if tokenizer.config.get("chat_template") else "without"
    return [
        *rows,
        ("context", f"{shape.context:,} tokens"),
        ("vocabulary", f"{shape.vocab:,}, of which the tokenizer has {tokenizer.size:,}"),
        ("chat", f"{chat} a template; a turn ends with {ends}"),
        ("fast path", "yes" if reason is None else f"no: {reason}"),
        ("to sample", f"{_memory(4 * count)} in float32, and the cache"),
        (
            "to learn",
            f"{_memory(16 * count)}: weights, gradients and optimiser; {_memory(4 * count)} with LoRA",
        ),
    ]


def _memory(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.1f} MiB"


def _of_adapter(folder: Path) -> list[tuple[str, str]]:
    config = read_json(folder / adapter_folder.CONFIG)
    tensors = weight_files.read_file(folder / adapter_folder.WEIGHTS)
    rank, alpha = adapter_folder.size_of(config, folder)
    targets = config.get("target_modules")
    named = ", ".join(sorted(targets)) if isinstance(targets, list) else str(targets)
    return [
        ("adapter", f"LoRA of rank {rank}, alpha {alpha:g}"),
        ("parameters", f"{sum(tensor.numel() for tensor in tensors.values()):,}"),
        ("adapts", named),
        ("base", str(config.get("base_model_name_or_path"))),
    ]
