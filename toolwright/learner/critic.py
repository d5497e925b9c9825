"""The critic: a decoder of its own with a value for every action's state."""

from __future__ import annotations

import copy
from typing import Unpack

import torch
from torch import Tensor, nn

from toolwright.algorithms import value_loss
from toolwright.algorithms.aggregate import Totals
from toolwright.batch import Batch
from toolwright.config import schema
from toolwright.learner.budget import ModelPasses, PassSettings, padded
from toolwright.learner.forward import precision, states
from toolwright.learner.optimizer import Optimizer
from toolwright.models.decoder import Decoder
from toolwright.models.precision import loosen


class ValueModel(nn.Module):
    """Starts as the policy's own body; the head starts at zero, so the first values are 0 everywhere."""

    def __init__(self, policy: Decoder) -> None:
        super().__init__()
        self.body = copy.deepcopy(policy)
        # Its output layer is not used; where it is tied to the embedding, that one is.
        if not policy.shape.tied:
            self.body.unembedding.requires_grad_(False)
        self.head = nn.Linear(policy.shape.width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.head.to(policy.device)

    def forward(self, batch: Batch) -> Tensor:
        """[actions, 1]: FSDP hangs a hook on what is returned, which must not be a view of something."""
        found = states(self.body, batch)
        return found.joined(self.head(found.hidden).float())


class Critic(ModelPasses):
    model: ValueModel
    optimizer: Optimizer

    def __init__(
        self,
        policy: Decoder,
        optimizer: schema.OptimizerConfig,
        *,
        total_updates: int,
        clip: float,
        **passes: Unpack[PassSettings],
    ) -> None:
        """`policy` as it is before it is sharded itself."""
        self.model, self.clip = ValueModel(policy), clip
        loosen(self.model.body, passes["dtype"])
        super().__init__(self.model, self.model.body, **passes)
        self.padded = padded(self.model.body, self.dtype)  # on the device that sharding has taken it to
        self.optimizer = Optimizer(
            self.model, optimizer, total_updates=total_updates, packs=self.packs, ranks=self.ranks
        )

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor:
        """[actions]"""

        def ask() -> Tensor:
            return self.ranks.ask(self.model, batch, self.budget.tokens, self.model, padded=self.padded)

        with precision(self.model.body, self.dtype):
            found = self.budget.fit(batch, ask)
        return found[:, 0]

    def update(self, batch: Batch) -> dict[str, float]:
        """Make one optimiser update towards the batch's `returns`."""
        return self.budget.fit(batch, lambda: self._update(batch))

    def _update(self, batch: Batch) -> dict[str, float]:
        self.optimizer.inner.zero_grad()  # of a pass that there was no room for
        totals = Totals.of(batch.mask)
        measured: list[Tensor] = []
        for part, weight in self.ranks.parts(batch, self.budget.tokens, padded=self.padded):
            here = part.to(self.model.body.device)
            with precision(self.model.body, self.dtype):
                values = self.model(part)[:, 0]
            loss, metrics = value_loss.compute(
                values=here.padded(values),
                old_values=here.padded("values"),
                returns=here.padded("returns"),
                mask=here.mask,
                clip_value=self.clip,
                totals=totals,
            )
            (loss * weight).backward()
            measured.append(weight * torch.stack((loss.detach(), metrics["clip_fraction"])))
        moved = self.optimizer.step()
        loss_sum, clipped = torch.stack(measured).double().sum(0).tolist()
        return {**self.ranks.sums({"loss": loss_sum, "clip_fraction": clipped}), **moved}
