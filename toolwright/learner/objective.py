"""The policy's objective: the chosen loss, the pull of the reference, the entropy bonus."""

from __future__ import annotations

import math

from torch import Tensor

from toolwright.algorithms import aggregate, correction, entropy, kl, losses
from toolwright.algorithms.aggregate import Totals
from toolwright.algorithms.entropy import EntropyBonus
from toolwright.batch import Batch
from toolwright.config import learning, schema
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


class Objective:
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
        """The coefficient of the entropy in this step's loss."""
        return self.entropy.applied(self.config.entropy_target)

    @property
    def prepares(self) -> bool:
        """True if the loss needs the whole minibatch before any part of it."""
        return losses.prepares(self.config.loss) or self.config.top_entropy_fraction < 1

    def prepare(self, batch: Batch, now: Statistics, *, seed: int = 0) -> dict[str, Tensor]:
        """Per-action columns that only the whole minibatch can tell, such as which tokens covary most.
        `seed` is the update's own, for a loss that draws; one in `algorithm.params` is added to it."""
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
        """The part's share of the loss; `totals` count the whole minibatch."""
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
