"""Measures how far the native engine's numbers are from the learner's: measured, with the model on this
machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from toolwright.config import schema
from toolwright.engines.native.paged_cache import new_cache
from toolwright.images import data_url
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.own_forward import vision_model
from toolwright.models.vision import PROBES, locate_images, vision_of
from toolwright.trajectory import SeenImage

PROMPT, DRAWN = 11, 5  # tokens


@torch.no_grad()
def difference(decoder: Decoder) -> float:
    """The largest difference of any log-probability between one pass over a whole sequence, as the learner
    makes it, and a pass over its prompt followed by one for each further token, as the engine does."""
    tokens = torch.arange(min(PROMPT + DRAWN, decoder.shape.context)) % decoder.shape.vocab
    found = _difference(decoder, tokens.to(decoder.device), [])
    reader = getattr(decoder, "reader", None)
    if reader is not None:  # the same with a picture in the prompt
        url = data_url(PROBES[0])
        text = tokens[tokens != reader.token]
        tokens = torch.cat([text[:3], torch.full((reader.tokens(url),), reader.token), text[3:]])
        if len(tokens) <= decoder.shape.context:
            found = max(found, _difference(decoder, tokens.to(decoder.device), [(0, len(tokens), url)]))
    return found


def _difference(decoder: Decoder, tokens: Tensor, seen: Sequence[SeenImage]) -> float:
    device = decoder.device
    prompt = max(1, len(tokens) - DRAWN)
    whole = PackedAttention([len(tokens)], device)
    turned = 0
    hidden, opening = decoder.hidden, decoder.hidden
    if seen:
        own = vision_model(decoder)
        row, every = locate_images(own, tokens, seen), torch.arange(len(tokens))
        turned = 0 if row.turned is None else int(row.turned.max()) + 1 - len(tokens)
        there = torch.where(every < prompt, every, -1)
        hidden = partial(own.hidden, vision=vision_of(own, [(row, every)], whole.positions))
        opening = partial(own.hidden, vision=vision_of(own, [(row, there)], whole.positions[:prompt]))
    by_learner = decoder.head(hidden(tokens, whole.positions, whole))
    shape = replace(
        decoder.shape, context=len(tokens) + 1
    )  # after the last token the place moves on once more
    cache = new_cache(schema.EngineConfig(slots=1), shape, dtype=torch.float32, device=device)
    cache.take("", tokens.tolist())
    places = torch.arange(prompt, device=device)
    extend = cache.extending([0], places[None])
    by_engine = [decoder.head(opening(tokens[:prompt], places, extend))]
    one = torch.ones(1, dtype=torch.int64, device=device)
    decode = cache.decoding(one * prompt, one, seen=prompt + 1)
    for token in tokens[prompt:]:
        by_engine.append(decoder.head(decoder.hidden(token[None], decode.positions + turned, decode)))
        decode.advance()
    return float((torch.cat(by_engine).log_softmax(-1) - by_learner.log_softmax(-1)).abs().max())
