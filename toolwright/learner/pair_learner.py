"""Learns a score from pairs: what people chose is to score more than what they rejected.

L = −mean log σ(s(chosen) − s(rejected) − margin)          Bradley and Terry, 1952; margins: 2307.09288
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from toolwright.config import schema
from toolwright.learner.budget import ModelPasses
from toolwright.learner.optimizer import Optimizer
from toolwright.models.precision import loosen
from toolwright.models.score_model import ScoreModel, runs


@dataclass(frozen=True)
class ComparedPair:
    """Two conversations as tokens, the better one first."""

    chosen: list[int]
    rejected: list[int]
    margin: float = 0.0

    @property
    def tokens(self) -> int:
        return len(self.chosen) + len(self.rejected)


@dataclass(frozen=True)
class PairBatch:
    pairs: Sequence[ComparedPair]

    @property
    def lengths(self) -> list[int]:
        return [pair.tokens for pair in self.pairs]

    @property
    def margin(self) -> Tensor:
        return torch.tensor([pair.margin for pair in self.pairs])

    def split(self, most: int) -> list[PairBatch]:
        """Parts of at most so many tokens; a pair that has more stands alone."""
        return [PairBatch(part) for part in runs(self.pairs, most, size=lambda pair: pair.tokens)]


class PairLearner(ModelPasses):
    model: ScoreModel
    optimizer: Optimizer

    def __init__(
        self,
        model: ScoreModel,
        optimizer: schema.OptimizerConfig,
        *,
        total_updates: int,
        micro_tokens: int | None,
        packs: bool = False,
    ) -> None:
        """`packs`: the optimiser's state is kept in eight bits."""
        if not model.body.shape.tied:
            model.body.unembedding.requires_grad_(False)  # nothing predicts tokens
        loosen(model.body, model.dtype)
        super().__init__(model, model.body, micro_tokens=micro_tokens, dtype=model.dtype, packs=packs)
        self.optimizer = Optimizer(model, optimizer, total_updates=total_updates, packs=packs)

    def update(self, pairs: Sequence[ComparedPair]) -> dict[str, float]:
        batch = PairBatch(pairs)
        return self.budget.fit(batch, lambda: self._update(batch))

    def _update(self, batch: PairBatch) -> dict[str, float]:
        self.optimizer.inner.zero_grad()  # of a pass that there was no room for
        found: list[Tensor] = []
        for part in batch.split(self.budget.tokens):
            ahead = self._ahead(part)
            pair_loss(ahead, part.margin).sum().div(len(batch.pairs)).backward()
            found.append(ahead.detach().cpu())
        moved = self.optimizer.step()
        measured = of_pairs(torch.cat(found), batch.margin)
        names = {"loss": "loss", "accuracy": "preference_accuracy", "margin": "preference_margin"}
        return {**{names[name]: value for name, value in measured.items()}, **moved}

    @torch.no_grad()
    def ahead(self, pairs: Sequence[ComparedPair]) -> Tensor:
        """[pairs]: by how much the chosen one scores more."""
        batch = PairBatch(pairs)

        def ask() -> Tensor:
            return torch.cat([self._ahead(part).cpu() for part in batch.split(self.budget.tokens)])

        return self.budget.fit(batch, ask)

    def _ahead(self, part: PairBatch) -> Tensor:
        scores = self.model([*(p.chosen for p in part.pairs), *(p.rejected for p in part.pairs)])[:, 0]
        chosen, rejected = scores.chunk(2)
        return chosen - rejected


def pair_loss(ahead: Tensor, margin: Tensor) -> Tensor:
    return F.softplus(margin.to(ahead.device) - ahead)


def of_pairs(ahead: Tensor, margin: Tensor) -> dict[str, float]:
    """The loss, how often the chosen one is ahead, and by how much; a draw is half right."""
    right = (ahead > 0).double() + 0.5 * (ahead == 0).double()
    loss = pair_loss(ahead.double(), margin.double())
    return {"loss": float(loss.mean()), "accuracy": float(right.mean()), "margin": float(ahead.mean())}
