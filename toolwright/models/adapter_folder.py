"""Adapters from and to folders as peft has them: adapter_config.json and adapter_model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models import huggingface, lora, weight_files
from toolwright.models.decoder import Decoder
from toolwright.models.folder import read_json
from toolwright.models.huggingface import halved, paired, size_text
from toolwright.models.lora import Adapter, LowRank
from toolwright.models.weight_files import read_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
OLDER = "adapter_model.bin"
PREFIX = "base_model.model."
# What would change the numbers and is not computed here: key -> the values under which it changes nothing.
PLAIN: dict[str, tuple[Any, ...]] = {
    "use_dora": (None, False),
    "modules_to_save": (None, []),
    "bias": (None, "none"),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "layer_replication": (None, []),
    "use_qalora": (None, False),
    # All others take something out of the base when they begin.
    "init_lora_weights": (None, True, False, "gaussian", "eva", "orthogonal"),
    **dict.fromkeys(("use_bdlora", "arrow_config", "kasa_config", "monteclora_config"), (None,)),
}


def is_adapter(folder: Path) -> bool:
    return (folder / CONFIG).is_file()


def base_of(folder: Path) -> Path:
    """The model that an adapter was made for; a relative path is one from here, or from the adapter."""
    named = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not named:
        raise UserError(
            f"{folder / CONFIG} names no base model; set model.path=BASE model.lora.path={folder}"
        )
    for place in (Path(named).expanduser(), folder / named):
        if place.is_dir():
            return place
    raise UserError(
        f"{folder} is an adapter of {named}, which is not a local folder; download that model, then set "
        f"model.path=BASE model.lora.path={folder}"
    )


def load(decoder: Decoder, folder: Path, *, base: Path) -> None:
    """Attach the folder's adapter to a decoder, to be used and trained further."""
    if not is_adapter(folder):
        raise UserError(f"{folder} is not an adapter folder: it has no {CONFIG}")
    config = read_json(folder / CONFIG)
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise UserError(f"{folder} is an adapter of kind {kind}; supported: LORA")
    for key, harmless in PLAIN.items():
        if config.get(key) not in harmless:
            raise UserError(
                f"{folder}: {key}={config[key]!r} is not supported; train the adapter without it, or merge "
                "it with peft"
            )
    rank, alpha = size_of(config, folder)
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    kept = {key: value for key, value in config.items() if key == "use_rslora"}
    found = _tensors(folder)
    modules = sorted({name.rpartition(".lora_")[0] for name in found})
    known = decoder.adaptable()
    strange = [module for module in modules if module not in known]
    if strange or not modules:
        what = f"it adapts {strange[0]}, which {base} does not have" if strange else "it adapts nothing"
        raise UserError(f"the adapter in {folder} is of another base: {what}{_made_for(config)}")
    lora.attach(decoder, Adapter(rank, alpha, scale, base=str(base), extra=kept), modules, seed=0)
    for _, low in lora.parts(decoder):
        _fill(low, found, decoder, folder, base, _made_for(config))
    _check_base(folder, base)


def _check_base(folder: Path, base: Path) -> None:
    """Compare the weights of `base` with those of the model that the adapter was made for, if that is here:
    an adapter may fit another model too."""
    try:
        named = base_of(folder)
    except UserError:
        return
    if named.resolve() != base.resolve() and not weight_files.alike(named, base):
        raise UserError(
            f"the adapter in {folder} is of another base: it was made for {named}, whose weights differ from "
            f"those of {base}; if you want this base, write {base} as base_model_name_or_path in its {CONFIG}"
        )


def size_of(config: Mapping[str, Any], folder: Path) -> tuple[int, float]:
    """Rank and alpha; missing values are peft's defaults."""
    rank, alpha = config.get("r", 8), config.get("lora_alpha", 8)
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise UserError(f"{folder / CONFIG}: r={rank!r} should be a whole number above 0")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool):
        raise UserError(f"{folder / CONFIG}: lora_alpha={alpha!r} should be a number")
    return rank, float(alpha)


def save_learned(decoder: Decoder, folder: Path, *, state: dict[str, Tensor] | None = None) -> None:
    """Save the adapter if there is one, else the whole model. `state`: the full state, if the decoder holds
    only a part."""
    if decoder.adapter is None:
        huggingface.save(decoder, folder, state=state)
    else:
        save(decoder, folder, state=state)


def save(decoder: Decoder, folder: Path, *, state: Mapping[str, Tensor] | None = None) -> None:
    """`state`: that of the adapter, where the decoder has only a part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    adapter = decoder.adapter
    assert adapter is not None
    weights: dict[str, Tensor] = {}
    state = lora.learned(decoder) if state is None else state
    transposed = False
    for name, low in lora.parts(decoder):
        adapted = [piece for piece in low.pieces if piece.adapted]
        for number, piece in enumerate(adapted):
            a, b = state[f"{name}.a.{number}"], state[f"{name}.b.{number}"]
            b = halved(b, decoder.shape) if piece.turned else b
            weights[f"{PREFIX}{piece.module}.lora_A.weight"] = a.detach().cpu().contiguous().clone()
            weights[f"{PREFIX}{piece.module}.lora_B.weight"] = b.detach().cpu().contiguous().clone()
        transposed |= low.transposed
    (folder / CONFIG).write_text(json.dumps(_config(decoder, adapter, transposed), indent=2) + "\n")
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    weight_files.copy_permissions(folder, CONFIG)


def _config(decoder: Decoder, adapter: Adapter, transposed: bool) -> dict[str, Any]:
    adapted = [piece.module for _, low in lora.parts(decoder) for piece in low.pieces if piece.adapted]
    ends = sorted({module.rpartition(".")[2] for module in adapted})
    everywhere = set(lora.matched(decoder, ends)) == set(adapted)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": adapter.base,
        "r": adapter.rank,
        "lora_alpha": int(adapter.alpha) if adapter.alpha.is_integer() else adapter.alpha,
        "lora_dropout": 0.0,
        "target_modules": ends if everywhere else sorted(adapted),
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        **adapter.extra,
    }


def _tensors(folder: Path) -> dict[str, Tensor]:
    """The tensors of a folder, by the hub's name of the module and `lora_A` or `lora_B`."""
    if not (folder / WEIGHTS).is_file() and (folder / OLDER).is_file():
        raise UserError(f"{folder} has its weights in {OLDER}: load it with peft, and save it as safetensors")
    found = {}
    for name, tensor in read_file(folder / WEIGHTS).items():
        plain = name.removeprefix(PREFIX).removesuffix(".weight").removesuffix(".default")
        if not plain.endswith((".lora_A", ".lora_B")):
            raise UserError(f"{folder / WEIGHTS}: {name} does not belong to a plain LoRA")
        found[plain] = tensor.float()
    weight_files.check_finite(folder, found.items())
    return found


@torch.no_grad()
def _fill(
    low: LowRank, found: Mapping[str, Tensor], decoder: Decoder, folder: Path, base: Path, made_for: str
) -> None:
    adapted = [piece for piece in low.pieces if piece.adapted]
    for piece, a, b in zip(adapted, low.a, low.b, strict=True):
        for matrix, target in (("lora_A", a), ("lora_B", b)):
            tensor = found.get(f"{piece.module}.{matrix}")
            if tensor is None:
                raise UserError(f"{folder} is incomplete: it has no {matrix} for {piece.module}")
            if tensor.shape != target.shape:
                raise UserError(
                    f"the adapter in {folder} is of another base: {matrix} of {piece.module} is "
                    f"{size_text(tensor)}, and {base} needs {size_text(target)}{made_for}"
                )
            turned = matrix == "lora_B" and piece.turned
            target.copy_(paired(tensor, decoder.shape) if turned else tensor)


def _made_for(config: Mapping[str, Any]) -> str:
    named = config.get("base_model_name_or_path")
    return f"; it was made for {named}" if named else ""
