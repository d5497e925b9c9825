"""The processes that do a learner's work: this process alone, or, in `sharding.py`, a group of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from toolwright.batch import Batch
from toolwright.models.decoder import Decoder

if TYPE_CHECKING:
    from toolwright.learner.optimizer import Optimizer


class MicroBatch(NamedTuple):
    """A micro-batch. One of weight 0 fills in when this rank has no work left but others have."""

    batch: Batch
    weight: float


class Ranks:
    """This process alone: it holds the whole model and does everything itself.

    Every rank of a group is given the whole batch and returns the same answers, so that what calls a learner
    need not know how many there are.
    """

    rank, size = 0, 1

    def shard(self, module: nn.Module, body: Decoder, *, dtype: torch.dtype) -> None:
        """Shard the parameters over the ranks. `body` is the decoder in `module`, or `module` itself."""

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

    def norm(self, module: nn.Module, gradients: Mapping[str, Tensor]) -> Tensor:
        """The length of the whole gradient, from this rank's part of each parameter's."""
        found = list(gradients.values())
        if all(gradient.dtype == torch.float32 for gradient in found):
            return nn.utils.get_total_norm(found, foreach=True)
        norms = torch._foreach_norm(found, 2, dtype=torch.float32)
        return torch.linalg.vector_norm(torch.stack(norms))

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """The whole of every tensor that is learned, by name; on rank 0, and nothing elsewhere."""
        return learned(module)

    def state(self, module: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
        """Return the state that the next update depends on, by parameter names: the same tree for any number
        of ranks."""
        state: dict[str, Any] = {"model": self.saved(module, learned(module))}
        if optimizer is not None:
            state["optimizer"] = _by_moment(optimizer.state_dict(), partial(self.saved, module))
        return state

    def restore(self, module: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any]) -> None:
        """Load a state whose tensors are whole, or as `state` gave them to any number of ranks."""
        held = self.held(module, state["model"])
        if isinstance(module, Decoder):
            module.load_learned(held)
        else:
            module.load_state_dict(held)
        if optimizer is not None:
            optimizer.load_state_dict(_by_moment(state["optimizer"], partial(self.held, module)))

    def saved(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert this rank's part of the parameters to a checkpoint's form."""
        return dict(tensors)

    def held(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a checkpoint's tensors to this rank's part of them."""
        return dict(tensors)


def _by_moment(
    state: Mapping[str, Any], convert: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> dict[str, Any]:
    """An optimiser's state with every moment of all parameters converted."""
    named: Mapping[str, Mapping[str, Tensor]] = state["adamw"]["state"]
    found: dict[str, dict[str, Tensor]] = {name: {} for name in named}
    for moment in dict.fromkeys(moment for of_one in named.values() for moment in of_one):
        for name, tensor in convert({n: t[moment] for n, t in named.items() if moment in t}).items():
            found[name][moment] = tensor
    return {**state, "adamw": {"state": found}}


def learned(module: nn.Module) -> dict[str, Tensor]:
    return module.learned_state() if isinstance(module, Decoder) else module.state_dict()


ALONE = Ranks()
