"""Tiny models, tokenizers and trajectories that several rooms' tests share."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder, Shape
from toolwright.models.experts import ExpertShape
from toolwright.models.tokenizer import Tokenizer
from toolwright.trajectory import Segment, Source, Task, Trajectory

if TYPE_CHECKING:
    from toolwright.learner.policy import Frozen, Policy

ALPHABET = "0123456789+= ab\n"

# One of each kind of decoder there is.
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"kv_heads": 2, "tied": False},
    "one_key_head": {"kv_heads": 1, "head_dim": 16, "layers": 1},
    "biased": {"kv_heads": 2, "qkv_bias": True, "family": "qwen2"},
    "normed": {"qk_norm": True, "layers": 3, "family": "qwen3"},
    "experts": {
        "qk_norm": True,
        "layers": 3,
        "family": "qwen3_moe",
        "experts": ExpertShape(count=6, used=2, ffn=24, normalised=True, dense=(1,)),
    },
}


def characters(*, ends: bool = True) -> Tokenizer:
    """`ends=False`: no token ends a turn, so that its length is known beforehand."""
    tokenizer = Tokenizer.characters(ALPHABET)
    if not ends:
        tokenizer.end_tokens = frozenset()
    return tokenizer


def shape(**changes: Any) -> Shape:
    small: dict[str, Any] = {
        "vocab": characters().size,
        "layers": 2,
        "width": 32,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 48,
        "context": 64,
        "head_dim": 8,
    }
    return Shape(**{**small, **changes})


def decoder(seed: int = 0, **changes: Any) -> Decoder:
    """Random weights that have opinions: freshly initialised ones find every token equally likely."""
    made = Decoder(shape(**changes)).initialise(seed)
    with torch.no_grad():
        for weight in {made.embedding.weight, made.unembedding.weight}:
            weight.mul_(20)
        for name, parameter in made.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0, 0.3, generator=torch.Generator().manual_seed(seed + 1))
    return made


@torch.no_grad()
def logits(model: Decoder, tokens: Sequence[int]) -> Tensor:
    """[tokens, vocab] by one plain pass over the whole sequence."""
    attend = PackedAttention([len(tokens)], torch.device("cpu"))
    return model.head(model.hidden(torch.tensor(tokens), attend.positions, attend))


def trajectory(segments: Sequence[tuple[Source, Sequence[int]]], *, group: str = "g") -> Trajectory:
    """Sampled tokens get log-probabilities that tell where they stand."""
    made = Trajectory(Task("t", []), group)
    for source, tokens in segments:
        place = len(made.tokens)
        sampled = [-0.125 * (place + i) for i in range(len(tokens))] if source == "policy" else []
        made.append(Segment(source, list(tokens), sampled))
    return made


def conversations(count: int, *, seed: int = 0, vocab: int = 20, longest: int = 40) -> list[Trajectory]:
    """Attempts of one to three turns with tool answers between, of very different lengths."""
    rng = random.Random(seed)

    def some(low: int, high: int) -> list[int]:
        return [rng.randrange(vocab) for _ in range(rng.randint(low, high))]

    made = []
    for number in range(count):
        turns = rng.randint(1, 3)
        budget = longest // turns
        segments: list[tuple[Source, list[int]]] = [("prompt", some(1, budget // 2))]
        for turn in range(turns):
            segments.append(("policy", some(1, budget // 4)))
            if turn < turns - 1:
                segments.append(("tool", some(0, budget // 4)))
        made.append(trajectory(segments, group=str(number // 2)))
    return made


def frozen_copy(policy: Policy) -> Frozen:
    """The reference of a policy: a copy of its weights as they are now."""
    import copy

    from toolwright.learner.policy import Frozen

    return Frozen(
        copy.deepcopy(policy.decoder).requires_grad_(False),
        temperature=policy.temperature,
        micro_tokens=policy.budget.asked,
        dtype=policy.dtype,
    )


def batch(count: int, *, seed: int = 0, longest: int = 40) -> Batch:
    """Packed conversations with every column a learner may be asked for."""
    packed = Batch.pack(conversations(count, seed=seed, longest=longest))
    generator = torch.Generator().manual_seed(seed)
    for name in ("advantages", "returns", "values"):
        packed.columns[name] = torch.randn(len(packed.actions), generator=generator)
    return packed
