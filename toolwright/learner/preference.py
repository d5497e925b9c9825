"""The objective of answers that were compared: a loss of whole sequences, cut into parts like any other.

The loss joins sequences that need not be in one micro-batch or on one rank. So it is computed once, from the
log-probabilities of the whole minibatch, together with its slope ∂L/∂log π(y) for each sequence. The parts
then descend Σ slope · log π(y), whose gradient is that of L.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms import preferences
from toolwright.algorithms.aggregate import Totals
from toolwright.algorithms.entropy import EntropyBonus
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.failures import UserError, nearest
from toolwright.learner.forward import Statistics

TOGETHER = 2  # sequences of a row: chosen and rejected, or an answer and an unrelated one


class PreferenceObjective:
    """The counterpart of `Objective` for compared answers. The batch has a column `label`, and where the loss
    needs it `ref_log_prob`."""

    prepares = True

    def __init__(self, config: schema.Algorithm) -> None:
        assert config.preference is not None
        self.config, self.name = config, config.preference
        # The pull towards the reference is in the loss itself, and there is no bonus.
        self.kl_coef, self.entropy_coef, self.entropy = 0.0, 0.0, EntropyBonus(0.0)
        self.correction = "none"  # no engine sampled, so there is no gap
        if other := [name for name in config.params if name != self.name]:
            raise UserError(
                f"algorithm.params.{other[0]}: algorithm.loss={self.name} is all that this run "
                f"computes; {nearest(other[0], [self.name])}"
            )
        self.params: dict[str, Any] = config.params.get(self.name, {})
        preferences.check_params(self.name, self.params)

    def prepare(self, batch: Batch, now: Statistics, *, seed: int = 0) -> dict[str, Tensor]:
        """Each action's slope, and its share of the loss and of what is measured."""
        loss, metrics, slope = self._compute(batch, now.log_prob)
        columns = {"prepared/slope": batch.spread(slope).float()}
        actions = sum(batch.action_lengths[row] for row in self._learned_rows(batch))
        for name, value in {"loss": loss, **metrics}.items():
            columns[f"prepared/{name}"] = torch.full_like(now.log_prob, float(value) / actions)
        return columns

    def learned(self, batch: Batch) -> Batch:
        """The sequences that have a gradient: unrelated answers are only measured."""
        rows = self._learned_rows(batch)
        return batch if len(rows) == len(batch) else batch.select(rows)

    def _learned_rows(self, batch: Batch) -> list[int]:
        return list(range(0, len(batch), TOGETHER if preferences.learns_from_labels(self.name) else 1))

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """The part's share of the loss; `prepare` has seen the whole minibatch."""
        shares = {
            name.removeprefix("prepared/"): column.sum()
            for name, column in part.columns.items()
            if name.startswith("prepared/") and name != "prepared/slope"
        }
        moved = now.log_prob - now.log_prob.detach()
        loss = shares.pop("loss") + (part.columns["prepared/slope"] * moved).sum()
        metrics = {f"preference_{name}": value for name, value in shares.items()}
        return loss, {**metrics, "entropy": now.entropy.detach().sum() / totals.tokens}

    def measure(self, batch: Batch, log_prob: Tensor) -> dict[str, float]:
        """The loss and its measures, for answers that are not learned from."""
        loss, metrics, _ = self._compute(batch, log_prob)
        return {"loss": float(loss), **{name: float(value) for name, value in metrics.items()}}

    def _compute(self, batch: Batch, log_prob: Tensor) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """(loss, metrics, slope [sequences]), in double precision: a sum over thousands of tokens is large
        beside what an update changes in it."""
        total = _sums(batch, log_prob).requires_grad_()
        lengths = torch.tensor(batch.action_lengths)
        ref = batch.columns.get("ref_log_prob")
        loss, metrics = preferences.compute(
            self.name,
            log_prob=total,
            length=lengths.double(),
            label=_sums(batch, batch.columns["label"]) / lengths,
            ref_log_prob=None if ref is None else _sums(batch, ref),
            **self.params,
        )
        [slope] = torch.autograd.grad(loss, total)
        return loss.detach(), metrics, slope


def _sums(batch: Batch, column: Tensor) -> Tensor:
    """[sequences]: the sum over the actions of each."""
    rows = batch.spread(torch.arange(len(batch)))
    return torch.zeros(len(batch), dtype=torch.float64).index_add(0, rows, column.double())
