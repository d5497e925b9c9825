"""Tiny classifiers of transformers, each with a tokenizer of bytes, as folders."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from toolwright.models.tokenizer import Tokenizer

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "num_labels": 1,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": None,
}


def classifier(folder: Path, kind: str = "LlamaForSequenceClassification", **changes: Any) -> Path:
    """Random weights that have opinions."""
    words = Tokenizer.bytes()
    config_class = getattr(transformers, kind.partition("For")[0] + "Config")
    own = {**SMALL, "vocab_size": words.size, **changes}
    if kind.startswith("GPT2"):
        own = {
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 256,
            "vocab_size": words.size,
            **changes,
        }
        own |= {"num_labels": 1, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    torch.manual_seed(3)
    model = getattr(transformers, kind)(config_class(**own))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    words.save(folder)
    return folder


def renamed_head(folder: Path, head: str, **config: Any) -> Path:
    """The folder with its head called otherwise, as other trainers save it."""
    weights = load_file(folder / "model.safetensors")
    weights[f"{head}.weight"] = weights.pop("score.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    known = json.loads((folder / "config.json").read_text())
    known |= {"architectures": ["RewardModel"], **config}
    (folder / "config.json").write_text(json.dumps(known))
    return folder


def logits(folder: Path, tokens: list[int], *, by_token: bool = False) -> list[float]:
    """What transformers' own forward says of a sequence."""
    kind = transformers.AutoModelForTokenClassification if by_token else None
    kind = kind or transformers.AutoModelForSequenceClassification
    with torch.no_grad():
        found = kind.from_pretrained(folder, dtype=torch.float32)(input_ids=torch.tensor([tokens])).logits[0]
    values: list[float] = (found[-1] if by_token else found).tolist()
    return values


def always_says(folder: Path, text: str) -> Path:
    """A language model whose next token follows from the last one alone; no character of `text` twice."""
    words = Tokenizer.bytes()
    said = [words.encode("<|assistant|>")[0], *words.encode(text), words.end]
    own = {**SMALL, "vocab_size": words.size, "hidden_size": 272, "max_position_embeddings": 2048}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**own, tie_word_embeddings=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.model.embed_tokens.weight[:, : words.size] = torch.eye(words.size)
        for token, following in itertools.pairwise(said):
            model.lm_head.weight[following, token] = 1.0
    model.save_pretrained(folder)
    words.save(folder)
    return folder
