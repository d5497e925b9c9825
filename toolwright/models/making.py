"""Models of random weights: any architecture, any size, with a tokenizer that fits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolwright.failures import UserError
from toolwright.models import weight_files
from toolwright.models.folder import foreign_code, quiet_transformers, read_json
from toolwright.models.known import KNOWN
from toolwright.models.tokenizer import Tokenizer


def make(folder: Path, like: str, changes: Mapping[str, Any], *, tokenizer: Path | None, seed: int) -> int:
    """`like` is a known model's name, a model folder or an architecture; `changes` are to its config.json.
    Without a tokenizer it gets that of the folder it is like, or one of bytes. Returns how many parameters
    it has."""
    transformers = quiet_transformers()
    source = Path(like).expanduser()
    if tokenizer is None and (source / "tokenizer.json").is_file():
        tokenizer = source
    words = Tokenizer.load(tokenizer) if tokenizer else Tokenizer.bytes()
    settings = {**_settings(like, source), **changes}
    settings.setdefault("vocab_size", words.size)
    if settings["vocab_size"] < words.size:
        raise UserError(
            f"vocab_size={settings['vocab_size']} is less than the {words.size} tokens of its tokenizer"
        )
    specials = {"eos_token_id": words.end, "pad_token_id": words.pad, "bos_token_id": None}
    config = _config(str(settings.pop("model_type", like)), {**settings, **specials}, changes)
    torch.manual_seed(seed)
    with foreign_code(f"no {config.model_type} model can be made of these settings"):
        with torch.device("meta"):
            _must_fit(transformers.AutoModelForCausalLM.from_config(config))
        model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    weight_files.copy_permissions(folder, "config.json")
    words.save(folder)
    return sum(p.numel() for p in model.parameters())


def _must_fit(model: torch.nn.Module) -> None:
    """Raise a UserError if the weights alone exceed memory: an architecture's own sizes are large."""
    count = sum(p.numel() for p in model.parameters())
    needed, there = 4 * count, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise UserError(
            f"{count:,} parameters take {needed / 1e9:,.0f} GB, and this machine has {there / 1e9:,.0f}; "
            "make it smaller, for example with num_hidden_layers=2 hidden_size=64"
        )


def _settings(like: str, folder: Path) -> dict[str, Any]:
    if like in KNOWN:
        return dict(KNOWN[like].config)
    if folder.is_dir():
        config = read_json(folder / "config.json")
        if not config:
            raise UserError(f"{folder} is not a model folder: it has no config.json")
        return {
            key: value
            for key, value in config.items()
            if key not in ("architectures", "dtype", "torch_dtype")
        }
    return {}


def _config(family: str, settings: dict[str, Any], changes: Mapping[str, Any]) -> Any:
    transformers = quiet_transformers()
    try:
        default = transformers.AutoConfig.for_model(family)
    except (ValueError, KeyError):
        names = ", ".join([*KNOWN, "llama", "mistral", "qwen2", "qwen3", "gpt2", "gemma"])
        raise UserError(
            f"{family!r} is not an architecture of transformers, a folder or a known model; use for example "
            f"{names}"
        ) from None
    strange = [key for key in changes if not hasattr(default, key)]
    if strange:
        raise UserError(
            f"a {family} model has no {strange[0]}; its config.json has {', '.join(_sizes(default))}"
        )
    heads, shared = settings.get("num_attention_heads"), settings.get("num_key_value_heads")
    if heads is not None and shared is None and hasattr(default, "num_key_value_heads"):
        settings["num_key_value_heads"] = heads  # the architecture's default goes with its own heads
    with foreign_code(f"no {family} model can be made of these settings"):
        return type(default)(**settings)


def _sizes(config: Any) -> list[str]:
    known = [*config.attribute_map, *config.to_dict()]
    return sorted(
        {key for key in known if key.startswith(("num_", "hidden", "inter", "n_", "vocab", "max_p"))}
    )
