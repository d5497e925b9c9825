"""Pickled weights, slow tokenizers and llama.cpp's GGUF files, as ordinary Hugging Face folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolwright.failures import UserError, extra
from toolwright.models import adapter_folder, huggingface, weight_files
from toolwright.models.folder import foreign_code, quiet_transformers
from toolwright.models.tokenizer import Tokenizer


def rewrite(source: Path, folder: Path, *, dtype: str | None = None) -> None:
    """Whatever form of weights and tokenizer `transformers` reads, in the one that everybody does. Without
    `dtype`, numbers stay as they are."""
    if adapter_folder.is_adapter(source):
        raise UserError(f"{source} is an adapter: `toolwright model merge` adds it to its base")
    huggingface.read_config(source)
    transformers = quiet_transformers()
    precision = "auto" if dtype is None else getattr(torch, dtype)
    with foreign_code(f"transformers cannot read {source}"):
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            source, dtype=precision, output_loading_info=True
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    if found["missing_keys"]:
        raise UserError(f"{source} is incomplete: it has no tensor {min(found['missing_keys'])}")
    model.save_pretrained(folder)
    weight_files.copy_permissions(folder, "config.json")
    if (source / "tokenizer.json").is_file():
        Tokenizer.load(source).save(folder)
        return
    tokenizer.save_pretrained(folder)
    Tokenizer.load(folder)


MAGIC = b"GGUF"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROWS = 4096  # of the two that are compared, at the least


def convert(file: Path, folder: Path) -> None:
    """`transformers` reads the file; what it gives is written as if it had never been quantised."""
    with file.open("rb") as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise UserError(f"{file} is not a GGUF file: it does not begin with {MAGIC.decode()}")
    with extra("gguf", needed_by="reading GGUF"):  # `transformers` reads with these
        import accelerate  # noqa: F401
        import gguf  # noqa: F401
    transformers = quiet_transformers()
    where: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with foreign_code(f"{file} cannot be converted"):
        read = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.tie_word_embeddings = _tied(read, _sizes(file))
    _name_specials(tokenizer, config)
    whole = type(read)(config)
    whole.load_state_dict(read.state_dict())
    whole.tie_weights()
    whole.generation_config.eos_token_id = config.eos_token_id
    folder.mkdir(parents=True, exist_ok=True)
    whole.save_pretrained(folder)
    weight_files.copy_permissions(folder, "config.json")
    tokenizer.save_pretrained(folder)
    Tokenizer.load(folder)


def _tied(model: Any, bits: Mapping[str, float]) -> bool:
    """True if the output layer is the embedding. Some files hold that one matrix twice, rounded in two ways:
    they differ by no more than the coarser rounding, and both become the finer one."""
    if OUTPUT not in bits:
        return True
    embedding, output = model.get_input_embeddings().weight.data, model.get_output_embeddings().weight.data
    coarser = min(bits[EMBEDDING], bits[OUTPUT])
    some = slice(None, None, max(1, len(output) // ROWS))
    difference = (embedding[some] - output[some]).norm() / output[some].norm()
    if difference > 4 / 2**coarser:  # of a rounding to so many bits, about half of that
        return False
    finer = output if bits[OUTPUT] >= bits[EMBEDDING] else embedding.clone()
    embedding.copy_(finer)
    output.copy_(finer)
    return True


def _sizes(file: Path) -> dict[str, float]:
    """Bits of a number, by the tensor's name."""
    from gguf import GGUFReader

    return {str(one.name): 8 * int(one.n_bytes) / int(one.n_elements) for one in GGUFReader(file).tensors}


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
