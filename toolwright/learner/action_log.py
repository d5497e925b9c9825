"""Collects what a step's passes compute for each action, from all micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.learner.forward import Statistics
from toolwright.learner.ranks import Ranks

PLACE = "place"  # the column that tells which of a step's actions this is, however the batch is cut up

Note = Callable[[Batch, Statistics], None]


class ActionLog:
    """Statistics that an update computes anyway. They stay on the device until they are read."""

    def __init__(self, batch: Batch) -> None:
        """Gives the batch its column `place`."""
        self.actions = len(batch.actions)
        batch.columns[PLACE] = torch.arange(self.actions)
        self._noted: list[tuple[Tensor, Tensor]] = []

    def note(self, piece: Batch, now: Statistics) -> None:
        known = torch.stack([now.log_prob, now.entropy, torch.ones_like(now.entropy)], dim=1)
        self._noted.append((piece.columns[PLACE], known.detach()))

    def whole(self, ranks: Ranks) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probability, entropy, whether any pass saw it), [actions] each, the same on all ranks."""
        found = torch.zeros(self.actions, 3)
        if self._noted:
            places, known = (torch.cat(parts).cpu() for parts in zip(*self._noted, strict=True))
            found[places] = known.float()
        log_prob, entropy, noted = ranks.total(found).unbind(1)  # nought from all ranks but one
        return log_prob, entropy, noted.bool()
