"""The policy: log-probabilities of what was sampled, and updates that make the better of it likelier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.budget import ModelPasses, PassSettings
from toolwright.learner.forward import Note, Statistics, learn, precision, statistics
from toolwright.learner.objective import UpdateObjective
from toolwright.learner.optimizer import Optimizer, own_part
from toolwright.models import adapter_folder, lora
from toolwright.models.decoder import Decoder
from toolwright.models.precision import loosen


class Frozen(ModelPasses):
    """A decoder that is evaluated and never updated: the reference, and the part that `Policy` shares with
    it."""

    def __init__(self, decoder: Decoder, *, temperature: float, **passes: Unpack[PassSettings]) -> None:
        super().__init__(decoder, decoder, **passes)
        self.decoder, self.temperature = decoder, temperature

    @torch.no_grad()
    def statistics(self, batch: Batch, *, squares: bool = False) -> dict[str, Tensor]:
        """`log_prob`, `entropy` and on request `sum_pi_squared`, [actions] each, at the present weights."""

        def compute(part: Batch) -> Tensor:
            now = statistics(self.decoder, part, temperature=self.temperature, squares=squares)
            columns = [now.log_prob, now.entropy]
            return torch.stack(
                columns if now.sum_pi_squared is None else [*columns, now.sum_pi_squared], dim=1
            )

        def ask() -> Tensor:
            return self.ranks.ask(self.decoder, batch, self.budget.tokens, compute, padded=self.padded)

        with precision(self.decoder, self.dtype):
            found = self.budget.fit(batch, ask)
        return dict(zip(("log_prob", "entropy", "sum_pi_squared"), found.unbind(1), strict=False))

    def weights(self) -> dict[str, Tensor]:
        """Every tensor whole, as an engine is to have it. All ranks call it, and the first has them."""
        return self.ranks.weights(self.decoder)

    def export(self, folder: Path) -> None:
        """The model of a Hugging Face folder, or the adapter's. All ranks call it, and the first writes."""
        state = self.weights()
        if self.ranks.rank == 0:
            adapter_folder.save_learned(self.decoder, folder, state=state)


class Policy(Frozen):
    optimizer: Optimizer

    def __init__(
        self,
        decoder: Decoder,
        optimizer: schema.OptimizerConfig,
        *,
        total_updates: int,
        temperature: float,
        **passes: Unpack[PassSettings],
    ) -> None:
        loosen(decoder, passes["dtype"])
        super().__init__(decoder, temperature=temperature, **passes)
        self.optimizer = Optimizer(
            decoder, optimizer, total_updates=total_updates, packs=self.packs, ranks=self.ranks
        )

    def update(
        self, batch: Batch, objective: UpdateObjective, *, seed: int = 0, note: Note | None = None
    ) -> dict[str, float]:
        """Make one optimiser update. However the minibatch is split into parts and among ranks, the gradient
        is the same. `seed` is for an objective that draws tokens at random; `note` is called with what this
        rank's passes said of their actions, again if memory runs out and the update is made anew."""
        return self.budget.fit(batch, lambda: self._update(batch, objective, seed, note))

    def _update(
        self, batch: Batch, objective: UpdateObjective, seed: int, note: Note | None
    ) -> dict[str, float]:
        self.optimizer.inner.zero_grad()  # of a pass that there was no room for
        if objective.prepares:
            prepared = objective.prepare(batch, Statistics(**self.statistics(batch)), seed=seed)
            batch = replace(batch, columns={**batch.columns, **prepared})
        batch = objective.learned(batch)
        totals = Totals.of(batch.mask)
        measured: list[tuple[float, dict[str, Tensor]]] = []
        routed: list[tuple[float, dict[str, Tensor]]] = []
        for part, weight in self.ranks.parts(batch, self.budget.tokens, padded=self.padded):

            def loss_of(piece: Batch, now: Statistics, weight: float = weight) -> Tensor:
                loss, metrics = objective(piece, now, totals)
                if "sampled_log_prob" in piece.columns:
                    difference = (now.log_prob - piece.columns["sampled_log_prob"]).detach()
                    metrics["gap/abs_mean"] = difference.abs().sum() / totals.tokens
                    metrics["gap/kl"] = -difference.sum() / totals.tokens
                    metrics["gap/abs_max"] = difference.abs().max()
                measured.append((weight, {**metrics, "loss": loss.detach()}))
                if note is not None and weight:
                    note(piece, now)
                return loss * weight

            share = weight * len(part.actions) / len(batch.actions)
            used = learn(
                self.decoder,
                part,
                loss_of,
                temperature=self.temperature,
                dtype=self.dtype,
                entropy_gradient=bool(objective.entropy_coef),
                at_once=self.ranks.size > 1,  # what is gathered for a pass is gone with its way back
                share=share,
            )
            routed.append((share, used))
        moved = self.optimizer.step()
        sums: dict[str, float] = {}
        highest = 0.0
        # Looked at once there is nothing left for the device to wait for.
        values_of = torch.stack([torch.stack(list(metrics.values())) for _, metrics in measured]).tolist()
        for (weight, metrics), row in zip(measured, values_of, strict=True):
            values = dict(zip(metrics, row, strict=True))
            highest = max(highest, values.pop("gap/abs_max", 0.0))
            for name, value in values.items():
                sums[name] = sums.get(name, 0.0) + weight * value
        for share, used in routed:
            for name, found in used.items():
                sums[name] = sums.get(name, 0.0) + share * float(found)
        if "sampled_log_prob" not in batch.columns:
            return {**self.ranks.sums(sums), **moved}
        return {**self.ranks.sums(sums), "gap/abs_max": self.ranks.highest(highest), **moved}


class AdapterReference:
    """The policy with the adapter that the run began with: a reference that shares the base with it.

    A new adapter adds nothing. It is turned off then, and no copy is kept.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        adds = any(bool(own_part(b).any()) for _, low in lora.parts(policy.decoder) for b in low.b)
        adds = policy.ranks.highest(float(adds)) > 0
        self.start = _copied(policy.decoder.learned_state()) if adds else {}

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        decoder = self.policy.decoder
        if not self.start:
            assert decoder.adapter is not None
            with decoder.adapter.off():
                return self.policy.statistics(batch)
        now = _copied(decoder.learned_state())
        decoder.load_learned(self.start)
        try:
            return self.policy.statistics(batch)
        finally:
            decoder.load_learned(now)

    def state_dict(self) -> dict[str, Any]:
        policy = self.policy
        return {"model": policy.ranks.saved(policy.decoder, self.start)} if self.start else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the adapter from a checkpoint: the folder that it came from may have changed since.
        Checkpoints of version 0.1 have none, so the folder's is used."""
        if state:
            held = self.policy.ranks.held(self.policy.decoder, state["model"])
            self.start = _copied(held, self.policy.decoder.device)


def _copied(state: Mapping[str, Tensor], device: torch.device | None = None) -> dict[str, Tensor]:
    return {name: tensor.detach().to(device=device, copy=True) for name, tensor in state.items()}
