"""A small model of random weights whose tokens are the words of given texts."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from toolwright.models import huggingface
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.tokenizer import CHARACTER_TEMPLATE, END, PAD, ROLES, UNKNOWN, Tokenizer

PIECE = r" ?[A-Za-z]+| ?[0-9]| ?[^A-Za-z0-9\s]|\s"  # a word with the blank before it, a digit, a mark


def word_model(folder: Path, texts: Iterable[str], *, width: int, context: int = 768) -> Path:
    found = {piece.strip() for text in texts for piece in re.findall(PIECE, text)} - {""}
    words = [" ", "\n", *sorted({form for piece in found for form in (piece, f" {piece}")})]
    specials = [PAD, END, UNKNOWN, *ROLES]
    known = {token: index for index, token in enumerate([*specials, *words])}
    backend = Backend(models.WordLevel(known, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(specials)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "additional_special_tokens": list(ROLES),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHARACTER_TEMPLATE,
    }
    own = Tokenizer(backend, config)
    shape = Shape(
        vocab=own.size,
        layers=1,
        width=width,
        heads=4,
        kv_heads=4,
        ffn=2 * width,
        context=context,
        head_dim=width // 4,
        qk_norm=True,
        family="qwen3",
        extra={"eos_token_id": own.end, "pad_token_id": 0, "bos_token_id": None},
    )
    huggingface.save(Decoder(shape).initialise(7), folder)
    own.save(folder)
    return folder
