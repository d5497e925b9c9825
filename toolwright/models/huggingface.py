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


def load(folder: Path, *, context: int | None = None) -> Decoder:
    """A decoder with the folder's weights. `context` cuts the tables for positions that are never used."""
    shape = read_shape(folder, context=context)
    decoder = Decoder(shape)
    decoder.load_state_dict(from_hub(_read_weights(folder), shape, folder))
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
    try:
        config = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{path} is not valid JSON: {error}") from None
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UserError(f"{folder} holds a {family!r} model; supported: {', '.join(sorted(FAMILIES))}")
    return _shape_of(config, family, context)


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
        extra={key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in config}
        | {"max_position_embeddings": limit},
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
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
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
    for ours, hub in _renaming(shape).items():
        missing = [name for name in hub if name not in weights]
        if missing:
            raise UserError(f"{folder} is incomplete: it has no tensor {missing[0]}")
        state[ours] = torch.cat([weights[name].float() for name in hub])
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
        weights.update(dict(zip(hub, pieces, strict=True)))
    return weights
