"""A learner over several processes: FSDP2 keeps a part of every parameter on each, and work is divided.

Each rank computes its own sequences through all layers. A layer's parameters are gathered before it is used
and dropped after; its gradient is summed over the ranks and each keeps the part that it updates. Losses are
divided by counts over the whole batch (`Totals`), so the sum over ranks is what one rank alone would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from toolwright.batch import Batch
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.ranks import Part, Ranks
from toolwright.learner.shares import plan
from toolwright.models.decoder import Decoder


class Group(Ranks):
    """This process as one of several. `join` makes it; `leave` ends it."""

    def __init__(self, mesh: DeviceMesh, *, device: torch.device, offload: bool = False) -> None:
        self.mesh, self.device, self.offload = mesh, device, offload
        self.rank, self.size = mesh.get_rank(), mesh.size()
        # Checkpoints are written while the next step runs: their messages must not mix with its own.
        self.aside = dist.new_group(backend="gloo")

    @classmethod
    def join(
        cls,
        *,
        rank: int,
        size: int,
        address: str,
        port: int,
        device: torch.device,
        timeout_s: float = 600.0,
        offload: bool = False,
    ) -> Group:
        """Returns once all `size` ranks are there. `address` and `port` are rank 0's, on which it listens.
        `timeout_s` is the longest that any rank waits for another, now or later. `offload`: parameters and
        optimiser state rest in main memory."""
        gpu = device.type == "cuda"
        if gpu:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpu else "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout_s),
        )
        return cls(init_device_mesh(device.type, (size,)), device=device, offload=offload)

    def leave(self) -> None:
        dist.destroy_process_group()

    def shard(self, module: nn.Module, body: Decoder, *, dtype: torch.dtype) -> None:
        low = dtype if dtype != torch.float32 else None
        settings: dict[str, Any] = {
            "mesh": self.mesh,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=low, reduce_dtype=torch.float32, cast_forward_inputs=False
            ),
            "offload_policy": CPUOffloadPolicy(pin_memory=self.device.type == "cuda")
            if self.offload
            else OffloadPolicy(),
        }
        for one in (*body.layers, module):
            sharded = fully_shard(one, **settings)
            # Totals count the whole batch: gradients are to be added up, not averaged.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

    def parts(self, batch: Batch, token_budget: int) -> list[Part]:
        stand_in = min(_acting(batch), key=lambda row: (batch.lengths[row], row))
        return [
            Part(batch.select(rows or [stand_in]), 1.0 if rows else 0.0)
            for rows in self._rows(batch, token_budget)
        ]

    def ask(
        self, module: nn.Module, batch: Batch, token_budget: int, compute: Callable[[Batch], Tensor]
    ) -> Tensor:
        found = [compute(part.batch).cpu() for part in self.parts(batch, token_budget)]
        if isinstance(module, FSDPModule):
            module.reshard()  # the outermost keeps what it gathered, and would miss the next update
        whole = torch.zeros(len(batch.actions), *found[0].shape[1:])
        for rows, values in zip(self._rows(batch, token_budget), found, strict=True):
            if rows:
                whole[batch.actions_of(rows)] = values
        dist.all_reduce(whole)  # nought from all ranks but one
        return whole

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def highest(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """One tensor after the other, so that no rank but the first ever holds more than one whole."""
        found: dict[int, Tensor] = {}  # tied weights are gathered once, and stay one tensor
        whole: dict[str, Tensor] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            if id(tensor) not in found:
                full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                found[id(tensor)] = full.detach().cpu() if self.rank == 0 else torch.empty(0)
            whole[name] = found[id(tensor)]
        return whole if self.rank == 0 else {}

    def state(self, module: nn.Module, optimizer: Optimizer | None) -> dict[str, Any]:
        """As of one process alone, but each tensor is the rank's part of it (a DTensor)."""
        if optimizer is None:
            return {"model": get_model_state_dict(module)}
        fresh = not optimizer.inner.state
        model, adamw = get_state_dict(module, optimizer.inner)
        if fresh:  # torch has made its state by an empty step, which is not one of ours
            for of_parameter in optimizer.inner.state.values():
                of_parameter["step"].zero_()
        return {"model": model, "optimizer": {"adamw": adamw, "updates": optimizer.updates}}

    def restore(self, module: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any]) -> None:
        own, given = module.state_dict(), dict(state["model"])
        whole = not any(isinstance(tensor, DTensor) for tensor in given.values())
        if whole:  # by hand, since torch's own way overlooks the second name of tied weights
            given = {name: _part_of(tensor, like=own.get(name)) for name, tensor in given.items()}
        set_model_state_dict(module, given)
        if optimizer is not None:
            set_optimizer_state_dict(
                module,
                optimizer.inner,
                state["optimizer"]["adamw"],
                options=StateDictOptions(full_state_dict=whole),
            )
            optimizer.updates = state["optimizer"]["updates"]

    def _rows(self, batch: Batch, token_budget: int) -> list[list[int]]:
        """Of each micro-batch of this rank."""
        acting = _acting(batch)
        planned = plan([batch.lengths[row] for row in acting], self.size, token_budget)[self.rank]
        return [[acting[i] for i in members] for members in planned]


def _part_of(whole: Tensor, *, like: Tensor | None) -> Tensor:
    if not isinstance(like, DTensor) or like.shape != whole.shape:
        return whole  # of another model: who loads it says so
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


def _acting(batch: Batch) -> list[int]:
    """The sequences in which something was sampled: of the others there is nothing to compute."""
    return [row for row, count in enumerate(batch.action_lengths) if count]
