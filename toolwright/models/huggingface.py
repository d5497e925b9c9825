"""Decoders from and to ordinary Hugging Face folders; the weights' names are translated both ways."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models import lora
from toolwright.models.decoder import PIECES, Decoder, Shape, Stored
from toolwright.models.elementwise import ROPE_KINDS
from toolwright.models.experts import ExpertShape, apart
from toolwright.models.folder import read_json
from toolwright.models.quantised import QuantisedMatrix
from toolwright.models.weight_files import check_finite, copy_permissions, read_weights

if TYPE_CHECKING:
    from toolwright.models.own_forward import OwnForward

# family -> what its configuration does not say: (query-key-value bias, query-key norm), and its class
FAMILIES = {
    "llama": (False, False, "LlamaForCausalLM"),
    "mistral": (False, False, "MistralForCausalLM"),
    "qwen2": (True, False, "Qwen2ForCausalLM"),
    "qwen3": (False, True, "Qwen3ForCausalLM"),
    "qwen3_moe": (False, True, "Qwen3MoeForCausalLM"),
}
# Keys that must be whole numbers above 0, and of those the ones that may be left out or null.
SIZES = (
    "vocab_size",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "head_dim",
    "max_position_embeddings",
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "decoder_sparse_step",
)
MAY_BE_NULL = ("num_key_value_heads", "head_dim")
# Keys of an original configuration that are not true any more of what is written; all others are kept.
NOT_KEPT = ("architectures", "auto_map", "dtype", "torch_dtype")
# What each way to stretch rotary positions cannot do without.
ROPE_NEEDS: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}


def load(
    folder: Path,
    *,
    context: int | None = None,
    fast: bool | None = None,
    stored: Stored = "float32",
    device: torch.device | None = None,
) -> Decoder:
    """A decoder with the folder's weights. `context` cuts the tables for positions that are never used.
    `fast`: by our own layers or by the model's own forward; None: the former where they compute the same."""
    if not is_fast(folder, context=context, fast=fast):
        from toolwright.models import own_forward

        return own_forward.load(folder, context=context).to(device)
    return _filled(_fast_shape(folder, context), read_weights(folder), folder, stored, device)


def load_body(
    folder: Path,
    head: str,
    *,
    context: int | None = None,
    stored: Stored = "float32",
    device: torch.device | None = None,
) -> tuple[Decoder, dict[str, Tensor]]:
    """The decoder of a folder that has another output layer, and the tensors of that one, `head`. What it
    would predict tokens with is left out: the embedding stands for it."""
    shape, weights = replace(_fast_shape(folder, context), tied=True), read_weights(folder)
    own = {name: weights.pop(name) for name in list(weights) if name.startswith(f"{head}.")}
    check_finite(folder, own.items())
    return _filled(shape, weights, folder, stored, device), own


@torch.no_grad()
def _filled(
    shape: Shape, weights: dict[str, Tensor], folder: Path, stored: Stored, device: torch.device | None
) -> Decoder:
    """A decoder with these weights, put there one after the other: a large model is never there twice."""
    decoder = Decoder(shape, blank=True, stored=stored, device=device)
    for name, weight in _translated(weights, shape, folder, device):
        path, _, last = name.rpartition(".")
        module = decoder.get_submodule(path)
        quantised = module if isinstance(module, QuantisedMatrix) and last == "weight" else None
        place: Tensor = getattr(module, last) if quantised is None else quantised.codes
        if weight.shape != place.shape:
            raise UserError(
                f"{folder}: its weights do not fit its config.json: {name} is {size_text(weight)}, "
                f"and should be {size_text(place)}"
            )
        if quantised is not None:
            quantised.load(weight)
        else:
            place.copy_(weight)
    return decoder


def save(decoder: Decoder, folder: Path, *, state: dict[str, Tensor] | None = None) -> None:
    """config.json and model.safetensors, as `transformers` and vLLM read them; an adapter is added to what
    it adapts. `state`: the weights of a decoder that has only a part of them."""
    folder.mkdir(parents=True, exist_ok=True)
    if state is None:
        state = decoder.state_dict() if decoder.adapter is None else lora.folded(decoder)
    if decoder.fast:
        (folder / "config.json").write_text(json.dumps(config_of(decoder), indent=2) + "\n")
        weights = {name: t.detach().contiguous().cpu() for name, t in to_hub(decoder.shape, state).items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _other(decoder).save(folder, state=state)
    copy_permissions(folder, "config.json")


def hub_weights(decoder: Decoder) -> dict[str, Tensor]:
    """The weights by the names that a folder's files have; an adapter is added to what it adapts."""
    state = decoder.state_dict() if decoder.adapter is None else lora.folded(decoder)
    return to_hub(decoder.shape, state) if decoder.fast else _other(decoder).to_hub(state)


def config_of(decoder: Decoder) -> dict[str, Any]:
    """The content of a folder's config.json."""
    if not decoder.fast:
        return _other(decoder).to_config()
    whole = decoder.stored == "float32" or decoder.adapter is not None  # sums with an adapter are float32
    return {**to_config(decoder.shape), "torch_dtype": "float32" if whole else "bfloat16"}


def _other(decoder: Decoder) -> OwnForward:
    """Return the decoder, which has a forward of its own."""
    from toolwright.models.own_forward import OwnForward

    assert isinstance(decoder, OwnForward)
    return decoder


def read_shape(folder: Path, *, context: int | None = None, fast: bool | None = None) -> Shape:
    """The shape that `load` would give, as far as config.json tells."""
    if is_fast(folder, context=context, fast=fast):
        return _fast_shape(folder, context)
    from toolwright.models import own_forward

    return own_forward.read_shape(folder, context=context)


def is_fast(folder: Path, *, context: int | None = None, fast: bool | None = None) -> bool:
    """True if `load` uses our own layers for it."""
    reason = slow_because(folder, context=context)
    if fast and reason:
        raise UserError(
            f"model.fast=yes: {folder} cannot take the fast path: {reason}; model.fast=auto runs it by its "
            "own forward, which is slower"
        )
    return reason is None if fast is None else fast


def slow_because(folder: Path, *, context: int | None = None) -> str | None:
    """Why our own layers would not compute what this model does; None if they do."""
    config = read_config(folder)
    family = config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        return f"it is a {family!r} model, but the fast path takes {', '.join(sorted(FAMILIES))}"
    _check_sizes(config, folder / "config.json")
    activation = config.get("hidden_act") or "silu"
    if activation not in ("silu", "swish"):
        return f"its activation is {activation!r}, but the fast path takes silu"
    biased = [key for key in ("attention_bias", "mlp_bias") if config.get(key) and family != "qwen2"]
    if biased:
        return f"it has {biased[0]}, which the fast path does not take"
    limit = int(config.get("max_position_embeddings", 2048))
    slides = config.get("use_sliding_window", family == "mistral")
    window = config.get("sliding_window", 4096 if family == "mistral" else None) if slides else None
    if window is not None and window < min(limit, context or limit):
        return (
            f"its attention reaches only {window} tokens back; with model.context={window} or less that "
            "makes no difference, and the model is fast"
        )
    rope = _rope(config)
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in ROPE_KINDS:
        return f"its rope scaling is {scaling!r}, but the fast path takes {', '.join(ROPE_KINDS)}"
    _check_rope(rope, scaling, folder / "config.json")
    if rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0)) != 1.0:
        return "only a part of its heads has rotary positions"
    return None


def read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        inner = folder / "model"
        hint = f"; {inner} is one" if (inner / "config.json").is_file() else ""
        raise UserError(f"{folder} is not a model folder: it has no config.json{hint}")
    config = read_json(path)
    if quantised := config.get("quantization_config"):
        how = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
        raise UserError(
            f"{folder}: its weights are quantised ({how}) and cannot be trained; use the model in bfloat16 "
            "or float32"
        )
    return config


def _rope(config: dict[str, Any]) -> dict[str, Any]:
    """Read how positions turn. Who adds `rope_scaling` to a configuration that has the newer name means
    it."""
    found: dict[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return found


def _check_rope(rope: dict[str, Any], kind: str, path: Path) -> None:
    for key in (*ROPE_NEEDS.get(kind, ()), "original_max_position_embeddings"):
        value = rope.get(key, None if key in ROPE_NEEDS.get(kind, ()) else 1)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise UserError(f"{path}: rope scaling {kind!r} needs {key}, a number above 0, and has {value!r}")
    if kind == "llama3" and rope["high_freq_factor"] <= rope["low_freq_factor"]:
        raise UserError(f"{path}: rope scaling 'llama3' needs a high_freq_factor above its low_freq_factor")


def _check_sizes(config: dict[str, Any], path: Path) -> None:
    """Raise a UserError for a value that no shape can be made of. A missing key is reported later."""
    for key in SIZES:
        value = config.get(key, 1)
        whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
        if not whole and not (value is None and key in MAY_BE_NULL):
            raise UserError(f"{path}: {key}={value!r} should be a whole number above 0")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, dict):
            raise UserError(f"{path}: {key}={config[key]!r} should be an object with rope_type, or null")
    for key in ("rope_theta", "rms_norm_eps"):
        value = config.get(key, 1.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise UserError(f"{path}: {key}={value!r} should be a number above 0")
    if (config.get("head_dim") or 2) % 2:
        raise UserError(
            f"{path}: head_dim={config['head_dim']} is odd, but rotary positions need pairs of numbers"
        )


def _fast_shape(folder: Path, context: int | None) -> Shape:
    config = read_config(folder)
    try:
        return shape_of(config, context, folder)
    except KeyError as error:
        raise UserError(f"{folder / 'config.json'} has no {error.args[0]}") from None


def shape_of(config: dict[str, Any], context: int | None, source: object) -> Shape:
    """The shape that a config.json describes. `source` is named in errors."""
    family = config["model_type"]
    qkv_bias, qk_norm, _ = FAMILIES[family]
    rope = _rope(config)
    scaling = {
        ("rope_type" if key == "type" else key): value for key, value in rope.items() if key != "rope_theta"
    }
    limit = int(config.get("max_position_embeddings", 2048))
    if scaling.get("rope_type") in ("llama3", "yarn"):
        original = config.get("original_max_position_embeddings", limit)
        scaling.setdefault("original_max_position_embeddings", original)
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
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        family=family,
        experts=ExpertShape.of(config, source) if family == "qwen3_moe" else None,
        extra={key: config[key] for key in config if key not in NOT_KEPT}
        | {"max_position_embeddings": limit},
    )


def to_config(shape: Shape) -> dict[str, Any]:
    rope = {"rope_type": "default", **(shape.rope_scaling or {}), "rope_theta": shape.rope_theta}
    return {
        **shape.extra,
        **({} if shape.experts is None else shape.experts.config()),
        "architectures": [FAMILIES[shape.family][2]],
        "model_type": shape.family,
        "vocab_size": shape.vocab,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.ffn,
        "hidden_act": "silu",
        "max_position_embeddings": shape.extra.get("max_position_embeddings", shape.context),
        "rms_norm_eps": shape.norm_eps,
        "rope_parameters": rope,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "torch_dtype": "float32",
    }


def _names(layer: int) -> dict[str, tuple[str, ...]]:
    """Our fused tensors to the hub's separate ones."""
    hub = f"model.layers.{layer}."
    return {
        **{f"{ours}.weight": tuple(f"{hub}{one}.weight" for one in names) for ours, names in PIECES.items()},
        "qkv.bias": tuple(f"{hub}{one}.bias" for one in PIECES["qkv"]),
        "q_norm": (f"{hub}self_attn.q_norm.weight",),
        "k_norm": (f"{hub}self_attn.k_norm.weight",),
        "attention_norm": (f"{hub}input_layernorm.weight",),
        "ffn_norm": (f"{hub}post_attention_layernorm.weight",),
    }


def _renaming(shape: Shape) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {
        "embedding.weight": ("model.embed_tokens.weight",),
        "norm": ("model.norm.weight",),
    }
    if not shape.tied:
        names["unembedding.weight"] = ("lm_head.weight",)
    for layer in range(shape.layers):
        named = _names(layer)
        if shape.experts is not None and shape.has_experts(layer):
            named |= shape.experts.names(f"model.layers.{layer}.mlp.")
        for ours, hub in named.items():
            if ours == "qkv.bias" and not shape.qkv_bias:
                continue
            if ours in ("q_norm", "k_norm") and not shape.qk_norm:
                continue
            names[f"layers.{layer}.{ours}"] = hub
    return names


def from_hub(weights: dict[str, Tensor], shape: Shape, folder: Path) -> dict[str, Tensor]:
    state = dict(_translated(weights, shape, folder))
    if shape.tied:
        state["unembedding.weight"] = state["embedding.weight"]
    return state


def _translated(
    weights: dict[str, Tensor], shape: Shape, folder: Path, device: torch.device | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Our names, each with its tensor in float32, made on the device."""
    renaming, weights = _renaming(shape), apart(weights)
    known = {name for hub in renaming.values() for name in hub} | {"lm_head.weight"}
    strange = sorted(n for n in weights if n not in known and not n.endswith("rotary_emb.inv_freq"))
    if strange:
        raise UserError(f"{folder} has tensors that a plain {shape.family} model does not have: {strange[0]}")
    for ours, hub in renaming.items():
        missing = [name for name in hub if name not in weights]
        if missing:
            raise UserError(f"{folder} is incomplete: it has no tensor {missing[0]}")
        pieces = [weights[name].to(device).float() for name in hub]
        check_finite(folder, zip(hub, pieces, strict=True))
        rows = [paired(p, shape) if _turns(n) else p for n, p in zip(hub, pieces, strict=True)]
        yield ours, rows[0] if len(rows) == 1 else torch.cat(rows)


def to_hub(shape: Shape, state: dict[str, Tensor]) -> dict[str, Tensor]:
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    weights = {}
    for ours, hub in _renaming(shape).items():
        rows = (q, kv, kv) if ".qkv." in ours else len(state[ours]) // len(hub)
        pieces = state[ours].split(rows)
        for name, piece in zip(hub, pieces, strict=True):
            weights[name] = halved(piece, shape) if _turns(name) else piece
    return weights


def _turns(name: str) -> bool:
    """True if a tensor of the hub has a row for each number of queries or keys."""
    return name.rpartition("self_attn.")[2].startswith(("q_", "k_"))


def paired(rows: Tensor, shape: Shape) -> Tensor:
    """The hub's halves of each head, i and i + half, as pairs, 2i and 2i + 1."""
    if rows.shape[0] % shape.head_dim:
        return rows  # of another model: `load` says so
    return rows.unflatten(0, (-1, 2, shape.head_dim // 2)).transpose(1, 2).flatten(0, 2)


def halved(rows: Tensor, shape: Shape) -> Tensor:
    """The inverse of `paired`."""
    return rows.unflatten(0, (-1, shape.head_dim // 2, 2)).transpose(1, 2).flatten(0, 2)


def size_text(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape))
