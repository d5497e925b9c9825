"""How far the native engine's numbers are from the learner's: measured, with the model on this machine."""

from __future__ import annotations

from dataclasses import replace

import torch

from toolwright.engines.native.cache import DecodeAttention, ExtendAttention, SlotCache
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder

PROMPT, DRAWN = 11, 5  # tokens


@torch.no_grad()
def difference(decoder: Decoder) -> float:
    """The largest difference of any log-probability between one pass over a whole sequence, as the learner
    makes it, and a pass over its prompt followed by one for each further token, as the engine does."""
    device = decoder.device
    tokens = torch.arange(min(PROMPT + DRAWN, decoder.shape.context), device=device) % decoder.shape.vocab
    prompt = max(1, len(tokens) - DRAWN)
    whole = PackedAttention([len(tokens)], device)
    by_learner = decoder.head(decoder.hidden(tokens, whole.positions, whole))
    shape = replace(
        decoder.shape, context=len(tokens) + 1
    )  # after the last token the place moves on once more
    cache = SlotCache(shape, 1, rows=1, dtype=torch.float32, device=device)
    places = torch.arange(prompt, device=device)
    extend = ExtendAttention(cache, torch.zeros(1, dtype=torch.int64, device=device), places[None])
    by_engine = [decoder.head(decoder.hidden(tokens[:prompt], places, extend))]
    one = torch.ones(1, dtype=torch.int64, device=device)
    decode = DecodeAttention(cache, one * prompt, one, seen=prompt + 1)
    for token in tokens[prompt:]:
        by_engine.append(decoder.head(decoder.hidden(token[None], decode.positions, decode)))
        decode.advance()
    return float((torch.cat(by_engine).log_softmax(-1) - by_learner.log_softmax(-1)).abs().max())
