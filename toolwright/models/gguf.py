"""llama.cpp's GGUF files as Hugging Face folders: weights in full numbers, tokenizer and template too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from toolwright.failures import UserError
from toolwright.models import weight_files
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.transformers_import import first_line, quiet_transformers

MAGIC = b"GGUF"


def convert(file: Path, folder: Path) -> None:
    """`transformers` reads the file; what it gives is written as if it had never been quantised."""
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{file} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    try:
        import gguf  # noqa: F401 (`transformers` reads with it)
    except ImportError:
        raise UserError("reading GGUF needs a package: pip install toolwright[gguf]") from None
    transformers = quiet_transformers()
    where: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    try:
        read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    except Exception as error:  # a reader of somebody's binary file may fail in any way
        raise UserError(f"{file} cannot be converted: {first_line(error)}") from None
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = "output.weight" not in _names(file)
    _name_specials(tokenizer, config)
    whole = type(read)(config)
    whole.load_state_dict(read.state_dict())
    whole.tie_weights()
    whole.generation_config.eos_token_id = config.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    whole.save_pretrained(folder)
    weight_files.share(folder, "config.json")
    tokenizer.save_pretrained(folder)
    Tokenizer.load(folder)


def _names(file: Path) -> set[str]:
    from gguf import GGUFReader

    return {str(tensor.name) for tensor in GGUFReader(file).tensors}


def _name_specials(tokenizer: Any, config: Any) -> None:
    """The token that ends a turn is the one that the template writes, and padding is never that one."""
    known = tokenizer.get_vocab()
    template = tokenizer.chat_template or ""
    if "<|im_end|>" in template and "<|im_end|>" in known:
        tokenizer.eos_token = "<|im_end|>"
    if tokenizer.pad_token is None or tokenizer.pad_token == tokenizer.eos_token:
        spare = [token for token in ("<|endoftext|>", "<pad>", "<unk>") if token in known]
        tokenizer.pad_token = next((t for t in spare if t != tokenizer.eos_token), tokenizer.eos_token)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = tokenizer.bos_token_id
