"""Decoders from and to ordinary Hugging Face folders; the weights' names are translated both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.folder import read_json

# family -> what its configuration does not say: (query-key-value bias, query-key norm)
FAMILIES = {
    "llama": (False, False),
    "mistral": (False, False),
    "qwen2": (True, False),
    "qwen3": (False, True),
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Keys that change nothing here and are written back as they were found. A missing key means a default.
KEPT = (
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
)


def load(folder: Path, *, context: int | None = None) -> Decoder:
    """A decoder with the folder's weights. `context` cuts the tables for positions that are never used."""
    shape = read_shape(folder, context=context)
    decoder = Decoder(shape)
    state = from_hub(_read_weights(folder), shape, folder)
    for name, parameter in decoder.state_dict().items():
        if state[name].shape != parameter.shape:
            raise UserError(
                f"{folder}: its weights do not fit its config.json: {name} is {_size(state[name])}, "
                f"and should be {_size(parameter)}"
            )
    decoder.load_state_dict(state)
    return decoder


def save(decoder: Decoder, folder: Path) -> None:
    """config.json and model.safetensors, as `transformers` and vLLM read them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_config(decoder.shape), indent=2) + "\n")
    weights = {name: tensor.detach().contiguous().cpu() for name, tensor in to_hub(decoder).items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def read_shape(folder: Path, *, context: int | None = None) -> Shape:
    path = folder / "config.json"
    if not path.is_file():
        raise UserError(f"{folder} is not a model folder: it has no config.json")
    config = read_json(path)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{folder} holds a {family!r} model; supported: {', '.join(sorted(FAMILIES))}")
    try:
        shape = _shape_of(config, family, context)
    except KeyError as error:
        raise UserError(f"{path} does not say {error.args[0]}") from None
    _refuse_what_would_be_wrong(config, shape, folder)
    return shape


def _refuse_what_would_be_wrong(config: dict[str, Any], shape: Shape, folder: Path) -> None:
    """Variants of the family that this decoder would run, and get wrong without a word."""
    activation = config.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        raise UserError(f"{folder}: its activation is {activation!r}; only silu is supported")
    slides = config.get("use_sliding_window", shape.family == "mistral")
    window = config.get("sliding_window") if slides else None
    if window is not None and window < shape.context:
        raise UserError(
            f"{folder}: its attention reaches only {window} tokens back, which is not supported; "
            f"set model.context to {window} or less, where that makes no difference"
        )
    scaling = (shape.rope_scaling or {}).get("rope_type", "default")
    if scaling not in ("default", "linear", "llama3"):
        raise UserError(f"{folder}: rope scaling {scaling!r} is not supported; known: linear, llama3")


def _shape_of(config: dict[str, Any], family: str, context: int | None) -> Shape:
    qkv_bias, qk_norm = FAMILIES[family]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = {
        ("rope_type" if key == "type" else key): value for key, value in rope.items() if key != "rope_theta"
    }
    limit = int(config.get("max_position_embeddings", 2048))
    return Shape(
        vocab=config["vocab_size"],
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config.get("num_key_value_heads") or config["num_attention_heads"],
        ffn=config["intermediate_size"],
        context=min(limit, context or limit),
        head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"],
        tied=bool(config.get("tie_word_embeddings", False)),
        norm_eps=config.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta") or config.get("rope_theta") or 10_000.0,
        rope_scaling=scaling if scaling.get("rope_type", "default") != "default" else None,
        qkv_bias=bool(config.get("attention_bias", qkv_bias)) if family != "qwen2" else True,
        qk_norm=qk_norm,
        family=family,
        extra={key: config[key] for key in KEPT if key in config} | {"max_position_embeddings": limit},
    )


def to_config(shape: Shape) -> dict[str, Any]:
    rope = {"rope_type": "default", **(shape.rope_scaling or {}), "rope_theta": shape.rope_theta}
    return {
        "architectures": [ARCHITECTURES[shape.family]],
        "model_type": shape.family,
        "vocab_size": shape.vocab,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "hidden_act": "silu",
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": rope,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "attention_bias": shape.qkv_bias and shape.family != "qwen2",
        "torch_dtype": "float32",
        **shape.extra,
    }


def _read_weights(folder: Path) -> dict[str, Tensor]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(read_json(index).get("weight_map", {}).values()))
    else:
        names = ["model.safetensors"]
    weights: dict[str, Tensor] = {}
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{folder} is not a whole model folder: {name} is missing")
        try:
            weights.update(load_file(folder / name))
        except (SafetensorError, OSError) as error:
            raise UserError(f"{folder / name} cannot be read as safetensors: {error}") from None
    return weights


def _names(layer: int) -> dict[str, tuple[str, ...]]:
    """Our fused tensors to the hub's separate ones."""
    hub = f"model.layers.{layer}."
    attention = hub + "self_attn."
    return {
        "attention_norm": (hub + "input_layernorm.weight",),
        "qkv.weight": tuple(attention + f"{part}_proj.weight" for part in "qkv"),
        "qkv.bias": tuple(attention + f"{part}_proj.bias" for part in "qkv"),
        "out.weight": (attention + "o_proj.weight",),
        "q_norm": (attention + "q_norm.weight",),
        "k_norm": (attention + "k_norm.weight",),
        "ffn_norm": (hub + "post_attention_layernorm.weight",),
        "gate_up.weight": (hub + "mlp.gate_proj.weight", hub + "mlp.up_proj.weight"),
        "down.weight": (hub + "mlp.down_proj.weight",),
    }


def _renaming(shape: Shape) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {
        "embedding.weight": ("model.embed_tokens.weight",),
        "norm": ("model.norm.weight",),
    }
    if not shape.tied:
        names["unembedding.weight"] = ("lm_head.weight",)
    for layer in range(shape.layers):
        for ours, hub in _names(layer).items():
            if ours == "qkv.bias" and not shape.qkv_bias:
                continue
            if ours in ("q_norm", "k_norm") and not shape.qk_norm:
                continue
            names[f"layers.{layer}.{ours}"] = hub
    return names


def from_hub(weights: dict[str, Tensor], shape: Shape, folder: Path) -> dict[str, Tensor]:
    state = {}
    renaming = _renaming(shape)
    known = {name for hub in renaming.values() for name in hub} | {"lm_head.weight"}
    strange = sorted(n for n in weights if n not in known and not n.endswith("rotary_emb.inv_freq"))
    if strange:
        raise UserError(f"{folder} has tensors that a plain {shape.family} model does not: {strange[0]}")
    for ours, hub in renaming.items():
        missing = [name for name in hub if name not in weights]
        if missing:
            raise UserError(f"{folder} is incomplete: it has no tensor {missing[0]}")
        pieces = [weights[name].float() for name in hub]
        state[ours] = torch.cat(
            [paired(p, shape) if _turns(n) else p for n, p in zip(hub, pieces, strict=True)]
        )
    if shape.tied:
        state["unembedding.weight"] = state["embedding.weight"]
    return state


def to_hub(decoder: Decoder) -> dict[str, Tensor]:
    shape, state = decoder.shape, decoder.state_dict()
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    parts = {"qkv": (q, kv, kv), "gate_up": (shape.ffn, shape.ffn)}
    weights = {}
    for ours, hub in _renaming(shape).items():
        sizes = next((sizes for key, sizes in parts.items() if f".{key}." in ours), None)
        pieces = state[ours].split(sizes) if sizes else (state[ours],)
        for name, piece in zip(hub, pieces, strict=True):
            weights[name] = halved(piece, shape) if _turns(name) else piece
    return weights


def _turns(name: str) -> bool:
    """Whether a tensor of the hub's has a row for each number of queries or keys."""
    return name.rpartition("self_attn.")[2].startswith(("q_", "k_"))


def paired(rows: Tensor, shape: Shape) -> Tensor:
    """The hub's halves of each head, i and i + half, as pairs, 2i and 2i + 1."""
    if rows.shape[0] % shape.head_dim:
        return rows  # of another model: `load` says so
    return rows.unflatten(0, (-1, 2, shape.head_dim // 2)).transpose(1, 2).flatten(0, 2)


def halved(rows: Tensor, shape: Shape) -> Tensor:
    """The inverse of `paired`."""
    return rows.unflatten(0, (-1, shape.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def _size(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
