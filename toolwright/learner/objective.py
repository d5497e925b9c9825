"""The policy's objective: the chosen loss, the pull of the reference, the entropy bonus; or compared answers.

A loss of compared answers joins sequences that need not be in one micro-batch or on one rank. So it is
computed once, from the log-probabilities of the whole minibatch, with its slope ∂L/∂log π(y) for each
sequence. The parts then descend Σ slope · log π(y), whose gradient is that of L.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms import aggregate, correction, entropy, kl, losses, preferences
from toolwright.algorithms.aggregate import Totals
from toolwright.algorithms.entropy import EntropyBonus
from toolwright.batch import Batch
from toolwright.config import learning, schema
from toolwright.failures import UserError, nearest
from toolwright.learner.forward import Statistics


def importance_weights(
    config: learning.Correction, mode: str, batch: Batch, old_log_prob: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """(weights, metrics) that correct the gap between the engine and `old_log_prob`, the learner's."""
    return correction.compute(
        mode=mode,
        old_log_prob=old_log_prob,
        sampled_log_prob=batch.padded("sampled_log_prob"),
        mask=batch.mask,
        level=config.level,
        low=config.low,
        high=config.high,
    )


class UpdateObjective:
    """What an update of the policy descends."""

    @property
    def prepares(self) -> bool:
        """True if it needs the whole minibatch before any part of it."""
        return False

    @property
    def entropy_coef(self) -> float:
        """The coefficient of the entropy in this step's loss."""
        return 0.0

    def prepare(self, batch: Batch, now: Statistics, *, seed: int = 0) -> dict[str, Tensor]:
        """Per-action columns that only the whole minibatch can tell. `seed` is the update's own."""
        return {}

    def learned(self, batch: Batch) -> Batch:
        """The sequences that have a gradient."""
        return batch

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        """The part's share of the loss, and metrics that add up; `totals` count the whole minibatch."""
        raise NotImplementedError


class Likelihood(UpdateObjective):
    """Minus the mean log-likelihood of the actions, as a warm start descends it."""

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        return -now.log_prob.sum() / totals.tokens, {}


class Objective(UpdateObjective):
    """An `algorithm` block made callable. Knows nothing of models; sums over micro-batches to the whole."""

    def __init__(self, config: schema.Algorithm, *, norm_tokens: int) -> None:
        self.config = config
        self.entry = losses.registry.get(config.loss)
        common = self.entry.accepted(
            clip_low=config.clip_low, clip_high=config.clip_high, clip_c=config.clip_c
        )
        self.params = {**common, **config.params.get(config.loss, {})}
        self.norm_tokens = config.norm_tokens or norm_tokens
        self.kl_coef = config.kl.coef
        self.entropy = EntropyBonus(config.entropy_coef)
        self.correction = "none"  # the mode of a step whose batch has no weights: the update computes them

    @property
    def entropy_coef(self) -> float:
        return self.entropy.applied(self.config.entropy_target)

    @property
    def prepares(self) -> bool:
        return losses.prepares(self.config.loss) or self.config.top_entropy_fraction < 1

    def prepare(self, batch: Batch, now: Statistics, *, seed: int = 0) -> dict[str, Tensor]:
        """Such as which tokens covary most. A seed in `algorithm.params` is added to the update's own."""
        columns: dict[str, Tensor] = {}
        if losses.prepares(self.config.loss):
            preparation = losses.preparations.get(self.config.loss)
            drawn = preparation.accepted(seed=seed + self.params.get("seed", 0))
            prepared = losses.prepare(
                self.config.loss,
                old_log_prob=batch.padded("old_log_prob"),
                log_prob=batch.padded(now.log_prob),
                advantages=batch.padded("advantages"),
                mask=batch.mask,
                **{**self.params, **drawn},
            )
            columns = {f"prepared/{name}": batch.flat(column) for name, column in prepared.items()}
        if self.config.top_entropy_fraction < 1:
            top = entropy.top(batch.padded(now.entropy), batch.mask, self.config.top_entropy_fraction)
            columns["top_entropy"] = batch.flat(top.float())
        return columns

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
        config, mask = self.config, part.mask
        log_prob = part.padded(now.log_prob)
        old = part.padded("old_log_prob") if "old_log_prob" in part.columns else log_prob.detach()
        prepared = {
            name.removeprefix("prepared/"): part.padded(column)
            for name, column in part.columns.items()
            if name.startswith("prepared/")
        }
        # Importance weights, 1 or 0 where only the least decided tokens are learned from, and 0 where a
        # constraint left no choice.
        weighing = [part.padded(name) for name in ("weights", "top_entropy", "free") if name in part.columns]
        corrected: dict[str, Tensor] = {}
        if self.correction != "none" and "weights" not in part.columns:
            weights, found = importance_weights(config.correction, self.correction, part, old)
            weighing.append(weights)
            share = mask.sum() / totals.tokens
            corrected = {f"correction/{name}": share * value for name, value in found.items()}
        loss, metrics = losses.compute(
            config.loss,
            old_log_prob=old,
            log_prob=log_prob,
            advantages=part.padded("advantages"),
            mask=mask,
            aggregate=config.aggregate,
            norm_tokens=self.norm_tokens,
            totals=totals,
            weights=math.prod(weighing[1:], start=weighing[0]) if weighing else None,
            **prepared,
            **self.params,
        )
        metrics = {**metrics, **corrected, "entropy": now.entropy.detach().sum() / totals.tokens}
        if self.entropy_coef:
            loss = loss - self.entropy_coef * self._aggregate(part.padded(now.entropy), mask, totals)
        if config.kl.where == "loss":
            away = kl.compute(
                config.kl.estimator, log_prob, part.padded("ref_log_prob"), mask, old_log_prob=old
            )
            away = self._aggregate(away, mask, totals)
            loss = loss + self.kl_coef * away
            metrics["reference_kl"] = away.detach()
        return loss, metrics

    def _aggregate(self, values: Tensor, mask: Tensor, totals: Totals) -> Tensor:
        mode = self.config.aggregate
        return aggregate.compute(mode, values, mask, totals=totals, norm_tokens=self.norm_tokens)


TOGETHER = 2  # sequences of a row: chosen and rejected, or an answer and an unrelated one


class PreferenceObjective(UpdateObjective):
    """The counterpart of `Objective` for compared answers. The batch has a column `label`, and where the loss
    needs it `ref_log_prob`."""

    prepares = True

    def __init__(self, config: schema.Algorithm) -> None:
        assert config.preference is not None
        self.config, self.name = config, config.preference
        # The pull towards the reference is in the loss itself, and there is no bonus.
        self.kl_coef, self.entropy = 0.0, EntropyBonus(0.0)
        self.correction = "none"  # no engine sampled, so there is no gap
        if other := [name for name in config.params if name != self.name]:
            raise UserError(
                f"algorithm.params.{other[0]}: algorithm.loss={self.name} is the only loss that this run "
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
        """Unrelated answers are only measured."""
        rows = self._learned_rows(batch)
        return batch if len(rows) == len(batch) else batch.select(rows)

    def _learned_rows(self, batch: Batch) -> list[int]:
        return list(range(0, len(batch), TOGETHER if preferences.learns_from_labels(self.name) else 1))

    def __call__(self, part: Batch, now: Statistics, totals: Totals) -> tuple[Tensor, dict[str, Tensor]]:
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
