"""The policy: log-probabilities of what was sampled, and updates that make the better of it likelier."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.forward import precision, statistics
from toolwright.learner.objective import Objective
from toolwright.learner.optimizer import Optimizer
from toolwright.models.decoder import Decoder


class Frozen:
    """A decoder that is only asked: the reference, and what the policy has in common with it."""

    def __init__(
        self, decoder: Decoder, *, temperature: float, micro_tokens: int, dtype: torch.dtype
    ) -> None:
        self.decoder = decoder
        self.temperature, self.micro_tokens, self.dtype = temperature, micro_tokens, dtype

    @classmethod
    def copy_of(cls, policy: Policy) -> Frozen:
        decoder = copy.deepcopy(policy.decoder).requires_grad_(False)
        return cls(
            decoder, temperature=policy.temperature, micro_tokens=policy.micro_tokens, dtype=policy.dtype
        )

    @torch.no_grad()
    def statistics(self, batch: Batch, *, squares: bool = False) -> dict[str, Tensor]:
        """`log_prob`, `entropy` and on request `sum_pi_squared`, [actions] each, at the present weights."""

        def compute(part: Batch) -> Tensor:
            now = statistics(self.decoder, part, temperature=self.temperature, squares=squares)
            columns = [now.log_prob, now.entropy]
            return torch.stack(
                columns if now.sum_pi_squared is None else [*columns, now.sum_pi_squared], dim=1
            )

        with precision(self.decoder, self.dtype):
            columns = batch.in_parts(self.micro_tokens, compute).cpu().unbind(1)
        return dict(zip(("log_prob", "entropy", "sum_pi_squared"), columns, strict=False))

    def state_dict(self) -> dict[str, Any]:
        return self.decoder.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decoder.load_state_dict(state)


class Policy(Frozen):
    def __init__(
        self,
        decoder: Decoder,
        optimizer: schema.Optimizer,
        *,
        total_updates: int,
        temperature: float,
        micro_tokens: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(decoder, temperature=temperature, micro_tokens=micro_tokens, dtype=dtype)
        self.optimizer = Optimizer(decoder, optimizer, total_updates=total_updates)

    def update(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """One optimiser update. However the minibatch is split into parts, the gradient is the same."""
        totals = Totals.of(batch.mask)
        if objective.prepares:
            prepared = objective.prepare(batch, self.statistics(batch)["log_prob"])
            batch = replace(batch, columns={**batch.columns, **prepared})
        device = self.decoder.embedding.weight.device
        sums: dict[str, float] = {}
        for part in batch.split(self.micro_tokens):
            part = part.to(device)
            with precision(self.decoder, self.dtype):
                now = statistics(
                    self.decoder,
                    part,
                    temperature=self.temperature,
                    entropy_gradient=bool(objective.config.entropy_coef),
                )
            loss, metrics = objective(part, now, totals)
            loss.backward()
            difference = (now.log_prob - part.columns["sampled_log_prob"]).detach()
            metrics = {
                **metrics,
                "loss": loss.detach(),
                "gap/abs_mean": difference.abs().sum() / totals.tokens,
                "gap/kl": -difference.sum() / totals.tokens,
            }
            for name, value in metrics.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            sums["gap/abs_max"] = max(sums.get("gap/abs_max", 0.0), float(difference.abs().max()))
        return {**sums, **self.optimizer.step()}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.decoder.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.decoder.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
