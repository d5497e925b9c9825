"""PRIME's reward model: a language model whose log-ratio to what it began as says how good an answer is.

    q_t = log π_φ(y_t) − log π_ref(y_t),   P(right) = σ(β Σ_t q_t)

It learns from outcomes alone, by cross-entropy, and is asked for q_t of every token.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch.nn.functional as F
from torch import Tensor

from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.budget import PassSettings
from toolwright.learner.forward import Statistics
from toolwright.learner.objective import UpdateObjective
from toolwright.learner.policy import Frozen, Policy
from toolwright.models.decoder import Decoder


@dataclass(frozen=True)
class OutcomeObjective(UpdateObjective):
    """Cross-entropy of the outcomes of so many sequences."""

    beta: float
    sequences: int

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        logit = self.beta * _sums(part, now.log_prob - part.columns["start"])
        label = _sums(part, part.columns["label"]) / part.mask.sum(-1).clamp(min=1)
        loss = F.binary_cross_entropy_with_logits(logit, label, reduction="sum") / self.sequences
        return loss, {"accuracy": ((logit > 0) == (label > 0.5)).float().sum() / self.sequences}


class ImplicitReward:
    def __init__(
        self,
        decoder: Decoder,
        optimizer: schema.OptimizerConfig,
        *,
        beta: float,
        total_updates: int,
        **passes: Unpack[PassSettings],
    ) -> None:
        """`decoder` as both begin; it becomes the reward model's own."""
        self.beta = beta
        self.start = Frozen(copy.deepcopy(decoder).requires_grad_(False), temperature=1.0, **passes)
        self.model = Policy(decoder, optimizer, total_updates=total_updates, temperature=1.0, **passes)

    def values(self, batch: Batch) -> Tensor:
        """[actions]: q."""
        return self.model.statistics(batch)["log_prob"] - self.start.statistics(batch)["log_prob"]

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one optimiser update towards the batch's `label`: 1 where the outcome was right."""
        before = self.start.statistics(batch)["log_prob"]
        columns = {"label": batch.columns["label"], "start": before}
        return self.model.update(replace(batch, columns=columns), OutcomeObjective(self.beta, len(batch)))

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "start": self.start.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.start.load_state_dict(state["start"])


def _sums(batch: Batch, column: Tensor) -> Tensor:
    """[sequences]: the sum over the actions of each."""
    return (batch.padded(column) * batch.mask).sum(-1)
