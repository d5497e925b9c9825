"""PRIME's reward model: a language model whose log-ratio to what it began as says how good an answer is.

    q_t = log π_φ(y_t) − log π_ref(y_t),   P(right) = σ(β Σ_t q_t)

It learns from outcomes alone, by cross-entropy, and is asked for q_t of every token.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.forward import Statistics, learn
from toolwright.learner.policy import Frozen, Policy
from toolwright.models.decoder import Decoder


class ImplicitReward:
    def __init__(
        self,
        decoder: Decoder,
        optimizer: schema.OptimizerConfig,
        *,
        beta: float,
        total_updates: int,
        micro_tokens: int | None,
        dtype: torch.dtype,
        packs: bool = False,
    ) -> None:
        """`decoder` as both begin; it becomes the reward model's own."""
        self.beta = beta
        common: dict[str, Any] = {"temperature": 1.0, "micro_tokens": micro_tokens, "dtype": dtype}
        self.start = Frozen(copy.deepcopy(decoder).requires_grad_(False), **common)
        self.model = Policy(decoder, optimizer, total_updates=total_updates, packs=packs, **common)

    def values(self, batch: Batch) -> Tensor:
        """[actions]: q."""
        return self.model.statistics(batch)["log_prob"] - self.start.statistics(batch)["log_prob"]

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one optimiser update towards the batch's `label`: 1 where the outcome was right."""
        before = self.start.statistics(batch)["log_prob"]
        whole = replace(batch, columns={"label": batch.columns["label"], "start": before})
        return self.model.budget.fit(whole, lambda: self._update(whole))

    def _update(self, batch: Batch) -> dict[str, float]:
        model, losses, right = self.model, list[Tensor](), list[Tensor]()
        model.optimizer.inner.zero_grad()  # of a pass that there was no room for

        def loss_of(piece: Batch, now: Statistics) -> Tensor:
            logit = self.beta * _sums(piece, now.log_prob - piece.columns["start"])
            label = _sums(piece, piece.columns["label"]) / piece.mask.sum(-1).clamp(min=1)
            losses.append(F.binary_cross_entropy_with_logits(logit, label, reduction="sum") / len(batch))
            right.append(((logit > 0) == (label > 0.5)).float().sum().detach() / len(batch))
            return losses[-1]

        for part in batch.split(model.budget.tokens, padded=model.padded):
            share = len(part.actions) / len(batch.actions)
            learn(model.decoder, part, loss_of, temperature=1.0, dtype=model.dtype, share=share)
        moved = model.optimizer.step()
        loss, accuracy = (float(torch.stack(found).detach().double().sum()) for found in (losses, right))
        return {"loss": loss, "accuracy": accuracy, **moved}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "start": self.start.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.start.load_state_dict(state["start"])


def _sums(batch: Batch, column: Tensor) -> Tensor:
    """[sequences]: the sum over the actions of each."""
    return (batch.padded(column) * batch.mask).sum(-1)
