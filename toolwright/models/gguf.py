"""llama.cpp's GGUF files as Hugging Face folders: weights in full numbers, tokenizer and template too."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from toolwright.failures import UserError
from toolwright.models import weight_files
from toolwright.models.tokenizer import Tokenizer
from toolwright.models.transformers_import import first_line, quiet_transformers

MAGIC = b"GGUF"
EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
ROWS = 4096  # of the two that are compared, at the least


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
    config.tie_word_embeddings = _tied(read, _sizes(file))
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
