"""The objective of compared answers: the gradient of the whole loss, however the minibatch is cut."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import tiny
import torch

from toolwright.algorithms import preferences
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.minibatches import minibatches
from toolwright.learner.objective import PreferenceObjective
from toolwright.learner.policy import Policy
from toolwright.models.decoder import Decoder

LABELS = torch.tensor([1.0, 0, 0, 0, 1, 0, 1, 0])


def answers(reference: Decoder) -> Batch:
    batch = Batch.pack(tiny.conversations(len(LABELS), seed=3))
    del batch.columns["sampled_log_prob"]
    batch.columns["label"] = LABELS.repeat_interleave(torch.tensor(batch.action_lengths))
    batch.columns["ref_log_prob"] = policy(reference).statistics(batch)["log_prob"]
    return batch


def policy(decoder: Decoder, micro_tokens: int | None = None) -> Policy:
    return Policy(
        copy.deepcopy(decoder),
        schema.OptimizerConfig(lr=1e-3, max_grad_norm=1e9),
        total_updates=10,
        temperature=1.0,
        micro_tokens=micro_tokens,
        dtype=torch.float32,
    )


def directly(decoder: Decoder, batch: Batch, name: str) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss of all sequences at once, by one plain pass over each, in double precision."""
    model, sums, start, place = copy.deepcopy(decoder).double(), [], 0, 0
    for length, count in zip(batch.lengths, batch.action_lengths, strict=True):
        tokens = batch.tokens[start : start + length]
        at = batch.actions[place : place + count] - start
        attend = tiny.PackedAttention([length], torch.device("cpu"))
        log_all = model.head(model.hidden(tokens, attend.positions, attend)).log_softmax(-1)
        sums.append(log_all[at - 1, tokens[at]].sum())
        start, place = start + length, place + count
    counts = torch.tensor(batch.action_lengths)
    rows = torch.arange(len(batch)).repeat_interleave(counts)
    reference = torch.zeros(len(batch)).double().index_add(0, rows, batch.columns["ref_log_prob"].double())
    loss, _ = preferences.compute(
        name,
        log_prob=torch.stack(sums),
        ref_log_prob=reference,
        length=counts.double(),
        label=LABELS.double(),
    )
    loss.backward()
    return loss.item(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro_tokens", [None, 64, 1])
@pytest.mark.parametrize("name", ["dpo", "kto", "orpo"])
def test_loss_and_gradient_are_those_of_the_whole_however_it_is_cut(
    name: str, micro_tokens: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = tiny.decoder()
    batch = answers(tiny.decoder(seed=1))
    expected, gradients = directly(decoder, batch, name)
    learner = policy(decoder, micro_tokens)
    found: dict[str, torch.Tensor] = {}

    def keep() -> dict[str, float]:
        found.update({n: p.grad.clone() for n, p in learner.decoder.named_parameters() if p.grad is not None})
        return {}

    monkeypatch.setattr(learner.optimizer, "step", keep)
    metrics = learner.update(batch, PreferenceObjective(schema.Algorithm(loss=name)))
    assert metrics["loss"] == pytest.approx(expected, rel=1e-5)
    assert found.keys() == gradients.keys()
    scale = max(float(gradient.abs().max()) for gradient in gradients.values())
    for key, gradient in gradients.items():
        assert (found[key].double() - gradient).abs().max() <= 2e-5 * scale, key
    assert not any(key.startswith("gap/") for key in metrics), "nothing was sampled"


def test_minibatches_keep_the_two_answers_of_a_row_side_by_side() -> None:
    batch = answers(tiny.decoder())
    batch = replace(batch, group=[str(row // 2) for row in range(len(batch))])
    parts = list(minibatches(batch, 3, seed=0, step=1, epoch=0, together=2))
    assert sum(len(part) for part in parts) == len(batch)
    for part in parts:
        assert part.group[0::2] == part.group[1::2]
