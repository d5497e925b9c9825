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
from toolwright.trajectory import Segment, Task, Trajectory


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


@pytest.mark.parametrize("most", [1, 7, 20])
def test_losses_of_some_sequences_after_the_other_add_up_and_no_logits_are_computed_twice(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.decoder()
    idle = Trajectory(Task("idle", []), group="idle", index=0)  # nothing was sampled there
    idle.append(Segment("prompt", [3, 4, 5]))
    batch = Batch.pack([idle, *tiny.conversations(6), idle])
    batch.columns["weight"] = torch.linspace(-1, 1, len(batch.actions))
    rows: list[int] = []
    head = model.head
    monkeypatch.setattr(model, "head", lambda hidden: rows.append(len(hidden)) or head(hidden))

    def gradient() -> list[Tensor]:
        model.zero_grad()

        def loss_of(piece: Batch, now: forward.Statistics) -> Tensor:
            assert piece.tokens[piece.actions].shape == now.log_prob.shape
            return (piece.padded("weight") * piece.padded(now.log_prob)).sum() + 0.1 * now.entropy.sum()

        forward.learn(model, batch, loss_of, temperature=0.7, dtype=torch.float32, entropy_gradient=True)
        return [p.grad for p in model.parameters() if p.grad is not None]

    whole = gradient()
    assert rows == [len(batch.actions)]
    rows.clear()
    monkeypatch.setattr(forward, "LOGITS_AT_ONCE", most * model.shape.vocab)
    torch.testing.assert_close(gradient(), whole, rtol=1e-4, atol=1e-5)
    if most >= max(batch.action_lengths):
        assert len(rows) > 1
        assert sum(rows) == len(batch.actions)
        assert max(rows) <= most
