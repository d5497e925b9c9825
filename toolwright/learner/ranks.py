"""Who does a learner's work: this process alone, or, in `sharding.py`, a group of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from toolwright.batch import Batch
from toolwright.learner.optimizer import Optimizer
from toolwright.models.decoder import Decoder


class MicroBatch(NamedTuple):
    """A micro-batch. One of weight 0 stands in where this rank has nothing left to do and others have."""

    batch: Batch
    weight: float


class Ranks:
    """This process alone: it holds the whole model and does everything itself.

    Every rank of a group is given the whole batch and returns the same answers, so that what calls a learner
    need not know how many there are.
    """

    rank, size = 0, 1

    def shard(self, module: nn.Module, body: Decoder, *, dtype: torch.dtype) -> None:
        """Keep a part of the parameters on each rank; `body` is the decoder in `module`, or it itself."""

    def parts(self, batch: Batch, token_budget: int, *, padded: bool) -> list[MicroBatch]:
        """This rank's micro-batches, as many as every other's."""
        return [MicroBatch(part, 1.0) for part in batch.split(token_budget, padded=padded)]

    def ask(
        self,
        module: nn.Module,
        batch: Batch,
        token_budget: int,
        compute: Callable[[Batch], Tensor],
        *,
        padded: bool,
    ) -> Tensor:
        """[actions, …] of the whole batch, computed by `module` without a gradient."""
        return batch.in_parts(token_budget, compute, padded=padded).cpu()

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        """The sums over all ranks."""
        return dict(values)

    def total(self, values: Tensor) -> Tensor:
        """The sum of this tensor over all ranks, in main memory."""
        return values

    def highest(self, value: float) -> float:
        """The highest value of all ranks."""
        return value

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """The whole of every tensor that is learned, by name; on rank 0, and nothing elsewhere."""
        return learned(module)

    def state(self, module: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
        """What the next update depends on, by the names of parameters: the same tree for any number of
        ranks."""
        state = {"model": learned(module)}
        return state if optimizer is None else {**state, "optimizer": optimizer.state_dict()}

    def restore(self, module: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any]) -> None:
        if isinstance(module, Decoder):
            module.load_learned(state["model"])
        else:
            module.load_state_dict(state["model"])
        if optimizer is not None:
            optimizer.load_state_dict(state["optimizer"])


def learned(module: nn.Module) -> dict[str, Tensor]:
    return module.learned_state() if isinstance(module, Decoder) else module.state_dict()


ALONE = Ranks()
