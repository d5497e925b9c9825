"""A Hugging Face folder written anew: its weights as safetensors, its tokenizer as a fast one."""

from __future__ import annotations

from pathlib import Path

import torch

from toolwright.failures import UserError
from toolwright.models import adapter_folder, huggingface, weight_files
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.transformers_import import first_line, quiet_transformers


def rewrite(source: Path, folder: Path, *, dtype: str | None = None) -> None:
    """Whatever form of weights and tokenizer `transformers` reads, in the one that everybody does. Without
    `dtype`, numbers stay as they are."""
    if adapter_folder.is_adapter(source):
        raise UserError(f"{source} is an adapter: `toolwright model merge` adds it to its base")
    huggingface.read_config(source)
    transformers = quiet_transformers()
    precision = "auto" if dtype is None else getattr(torch, dtype)
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=precision, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    except Exception as error:  # a reader of somebody's files may fail in any way
        raise UserError(f"transformers cannot read {source}: {first_line(error)}") from None
    if found["missing_keys"]:
        raise UserError(f"{source} is incomplete: it has no tensor {min(found['missing_keys'])}")
    model.save_pretrained(folder)
    weight_files.share(folder, "config.json")
    if (source / "tokenizer.json").is_file():
        Tokenizer.load(source).save(folder)
        return
    tokenizer.save_pretrained(folder)
    Tokenizer.load(folder)
