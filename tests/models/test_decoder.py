"""The decoder's own promises: packing changes nothing, and the same seed gives the same weights."""

from __future__ import annotations

import random
from itertools import chain

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolwright.models.attention import PackedAttention
from toolwright.models.decoder import Decoder
from toolwright.models.elementwise import rms_norm
from toolwright.models.tokenizer import Tokenizer

SHAPES = {name: tiny.decoder(**changes) for name, changes in tiny.SHAPES.items()}


@pytest.mark.parametrize("kind", SHAPES)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_sequences_laid_end_to_end_do_not_see_each_other(kind: str, lengths: list[int]) -> None:
    model, rng = SHAPES[kind], random.Random(0)
    sequences = [[rng.randrange(model.shape.vocab) for _ in range(length)] for length in lengths]
    attend = PackedAttention(lengths, torch.device("cpu"))
    with torch.no_grad():
        hidden = model.hidden(torch.tensor([*chain(*sequences)]), attend.positions, attend)
        together = model.head(hidden).split(lengths)
    for sequence, got in zip(sequences, together, strict=True):
        torch.testing.assert_close(got, tiny.logits(model, sequence), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_token_never_depends_on_what_comes_after_it(kind: str) -> None:
    model = SHAPES[kind]
    tokens = [i % model.shape.vocab for i in range(20)]
    changed = [*tokens[:12], *reversed(tokens[12:])]
    before, after = tiny.logits(model, tokens), tiny.logits(model, changed)
    torch.testing.assert_close(before[:12], after[:12], rtol=1e-5, atol=2e-5)
    assert not torch.allclose(before[13:], after[13:])


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    one = Decoder(tiny.shape()).initialise(7)
    torch.manual_seed(1)
    torch.rand(5)
    other = Decoder(tiny.shape()).initialise(7)
    different = Decoder(tiny.shape()).initialise(8)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, different.embedding.weight)


def test_a_tied_decoder_keeps_one_embedding() -> None:
    assert len(list(tiny.decoder(tied=True).parameters())) + 1 == len(
        list(tiny.decoder(tied=False).parameters())
    )


@given(
    shape=st.sampled_from([(1, 8), (5, 8), (3, 4, 8)]),
    per_head=st.booleans(),
    size=st.sampled_from([1e-4, 1.0, 1e4]),
)
@settings(max_examples=20, deadline=None, derandomize=True)
def test_the_norm_and_its_gradient_are_those_of_the_formula(
    shape: tuple[int, ...], per_head: bool, size: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (size * torch.randn(shape, generator=generator)).requires_grad_()
    weight = torch.randn(shape[1:] if per_head else shape[-1:], generator=generator).requires_grad_()
    direction = torch.randn(shape, generator=generator)
    wide, scale = x.double(), weight.double()
    plain = (wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale).float()
    wanted = torch.autograd.grad((plain * direction).sum(), (x, weight))
    normed = rms_norm(x, weight, 1e-6)
    found = torch.autograd.grad((normed * direction).sum(), (x, weight))
    torch.testing.assert_close(normed, plain, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.equal(rms_norm(x, weight, 1e-6), normed), "learner and engine say the same"
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@given(st.text(alphabet=tiny.ALPHABET))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_characters_come_back_as_they_went_in(text: str) -> None:
    tokenizer = tiny.characters()
    tokens = tokenizer.encode(text)
    assert len(tokens) == len(text)
    assert tokenizer.decode(tokens) == text


def test_marks_are_one_token_each_and_not_part_of_what_was_said() -> None:
    tokenizer = Tokenizer.characters("hi")
    tokens = tokenizer.encode("<|user|>hi<|end|><|assistant|>")
    assert len(tokens) == 5
    assert tokenizer.decode(tokens) == "hi"
