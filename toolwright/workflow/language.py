"""The words of a small policy: a tokenizer for states and edits, and a fresh model that speaks them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from toolwright.models.tokenizer import CHARACTER_TEMPLATE, END, PAD, ROLES, UNKNOWN, Tokenizer
from toolwright.workflow.operators import OPERATORS, operator

# A word with the blank before it, a digit, a mark. Names fall apart at `_` and digits, so any can be said.
PIECE = r" ?[A-Za-z]+| ?[0-9]| ?[^A-Za-z0-9\s]|\s"
GRAMMAR = (
    "add after into with remove replace rewire set prompt repeat accept output task problem entry_point x if "
    "else math code question data solve choose review true false -> = ( ) [ ] + . , ; : ? _ ' \" "
)


def words(texts: Iterable[str]) -> list[str]:
    """Every piece of the texts, with and without a blank before it, in one order."""
    found = {piece.strip() for text in texts for piece in re.findall(PIECE, text)} - {""}
    return [" ", "\n", *sorted({form for piece in found for form in (piece, f" {piece}")})]


def vocabulary(prompts: Iterable[str] = ()) -> list[str]:
    """What states and edits over the registered operators are written with; `prompts` are names."""
    said = [GRAMMAR, "0 1 2 3 4 5 6 7 8 9", *prompts]
    for name in OPERATORS.names():
        kind = operator(name)
        stem = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        said += [name, stem, *kind.ports, *kind.fields, *kind.settings]
    return words(said)


def tokenizer(vocabulary: Iterable[str]) -> Tokenizer:
    """One token a piece. What it has no piece for is unknown, and never an error."""
    specials = [PAD, END, UNKNOWN, *ROLES]
    known = {token: index for index, token in enumerate([*specials, *vocabulary])}
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
    return Tokenizer(backend, config)


def fresh(
    folder: Path,
    *,
    seed: int,
    prompts: Iterable[str] = (),
    layers: int = 2,
    width: int = 64,
    context: int = 768,
) -> Path:
    """A model folder with random weights, to be taught by `sft` and `train` or by a search itself."""
    from toolwright.agents.rollout import seed_of
    from toolwright.models import huggingface
    from toolwright.models.decoder import Decoder, Shape

    own = tokenizer(vocabulary(prompts))
    shape = Shape(
        vocab=own.size,
        layers=layers,
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
    huggingface.save(Decoder(shape).initialise(seed_of(seed, "weights")), folder)
    own.save(folder)
    return folder
