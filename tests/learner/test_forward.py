"""What one pass says of each action, checked against the plainest way to compute it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tiny
import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.learner import forward
from toolwright.learner.forward import statistics
from toolwright.models.decoder import Decoder


def one_by_one(model: Decoder, batch: Batch, temperature: float) -> Iterator[Tensor]:
    """Log-probabilities over the vocabulary at each action, a sequence at a time."""
    start = 0
    for sequence in batch.tokens.split(batch.lengths):
        logits = tiny.logits(model, sequence.tolist()) / temperature
        here = (batch.actions >= start) & (batch.actions < start + len(sequence))
        yield logits.log_softmax(-1)[batch.actions[here] - start - 1]
        start += len(sequence)


@pytest.mark.parametrize("kind", tiny.SHAPES)
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_statistics_are_those_of_the_softmax_before_each_action(kind: str, temperature: float) -> None:
    model, batch = tiny.decoder(**tiny.SHAPES[kind]), tiny.batch(6)
    now = statistics(model, batch, temperature=temperature, squares=True)
    every = torch.cat(list(one_by_one(model, batch, temperature)))
    said = batch.tokens[batch.actions]
    torch.testing.assert_close(now.log_prob, every.gather(1, said[:, None])[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(now.entropy, -(every.exp() * every).sum(-1), rtol=1e-4, atol=1e-5)
    assert now.sum_pi_squared is not None
    torch.testing.assert_close(now.sum_pi_squared, every.exp().square().sum(-1), rtol=1e-4, atol=1e-5)


def test_a_large_vocabulary_is_done_in_pieces_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = tiny.decoder(), tiny.batch(6)

    def gradient() -> tuple[Tensor, list[Tensor]]:
        now = statistics(model, batch, temperature=0.7, entropy_gradient=True, squares=True)
        assert now.sum_pi_squared is not None
        wanted = now.log_prob.sum() + 0.3 * now.entropy.sum() + now.sum_pi_squared.sum()
        return wanted.detach(), list(torch.autograd.grad(wanted, list(model.parameters())))

    whole, of_whole = gradient()
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", 5 * model.shape.vocab)
    pieces, of_pieces = gradient()
    torch.testing.assert_close(whole, pieces)
    torch.testing.assert_close(of_whole, of_pieces, rtol=1e-4, atol=1e-5)


def test_entropy_has_a_gradient_only_where_it_is_asked_for() -> None:
    model, batch = tiny.decoder(), tiny.batch(3)
    assert not statistics(model, batch, temperature=1.0).entropy.requires_grad
    assert statistics(model, batch, temperature=1.0, entropy_gradient=True).entropy.requires_grad
