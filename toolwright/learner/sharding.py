"""A learner over several processes: FSDP2 keeps a part of every parameter on each, and work is divided.

Each rank computes its own sequences through all layers. A layer's parameters are gathered before it is used
and dropped after; its gradient is summed over the ranks and each keeps the part that it updates. Losses are
divided by counts over the whole batch (`Totals`), so the sum over ranks is what one rank alone would compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from toolwright.batch import Batch
from toolwright.learner.optimizer import Optimizer
from toolwright.learner.ranks import MicroBatch, Ranks, learned
from toolwright.learner.shares import plan
from toolwright.models.decoder import Decoder


class RankGroup(Ranks):
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
    ) -> RankGroup:
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

    def parts(self, batch: Batch, token_budget: int, *, padded: bool) -> list[MicroBatch]:
        stand_in = min(_acting(batch), key=lambda row: (batch.lengths[row], row))
        return [
            MicroBatch(batch.select(rows or [stand_in]), 1.0 if rows else 0.0)
            for rows in self._rows(batch, token_budget, padded)
        ]

    def ask(
        self,
        module: nn.Module,
        batch: Batch,
        token_budget: int,
        compute: Callable[[Batch], Tensor],
        *,
        padded: bool,
    ) -> Tensor:
        parts = self.parts(batch, token_budget, padded=padded)
        found = [compute(part.batch).cpu() for part in parts]
        if isinstance(module, FSDPModule):
            module.reshard()  # the outermost keeps what it gathered, and would miss the next update
        whole = torch.zeros(len(batch.actions), *found[0].shape[1:])
        for rows, values in zip(self._rows(batch, token_budget, padded), found, strict=True):
            if rows:
                whole[batch.actions_of(rows)] = values
        dist.all_reduce(whole)  # nought from all ranks but one
        return whole

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        total = torch.tensor(list(values.values()), dtype=torch.float64)
        dist.all_reduce(total)
        return dict(zip(values, total.tolist(), strict=True))

    def total(self, values: Tensor) -> Tensor:
        dist.all_reduce(values)
        return values

    def highest(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """One tensor after the other, so that no rank but the first ever holds more than one whole."""
        found: dict[int, Tensor] = {}  # tied weights are gathered once, and stay one tensor
        whole: dict[str, Tensor] = {}
        expected = learned(module)
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name not in expected:
                continue
            if id(tensor) not in found:
                full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                found[id(tensor)] = full.detach().cpu() if self.rank == 0 else torch.empty(0)
            whole[name] = found[id(tensor)]
        return whole if self.rank == 0 else {}

    def restore(self, module: nn.Module, optimizer: Optimizer | None, state: Mapping[str, Any]) -> None:
        """From a state whose tensors are whole, or this rank's parts of them."""
        like = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, DTensor)}
        found: dict[str, Any] = {
            "model": {name: _part(tensor, like.get(name)) for name, tensor in state["model"].items()}
        }
        if optimizer is not None:
            named = state["optimizer"]["adamw"]["state"]
            parts = {
                name: {key: _part(value, like.get(name)) for key, value in of_one.items()}
                for name, of_one in named.items()
            }
            found["optimizer"] = {**state["optimizer"], "adamw": {"state": parts}}
        super().restore(module, optimizer, found)

    def blank(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room in main memory for this rank's part of a tensor, cut as FSDP cuts parameters: by rows."""
        if not size:
            return torch.empty((), dtype=dtype)
        rows = -(-size[0] // self.size)
        start = min(self.rank * rows, size[0])
        held = torch.empty(min(rows, size[0] - start), *size[1:], dtype=dtype)
        whole = torch.empty(*size, dtype=dtype, device="meta")
        return DTensor.from_local(
            held, self.mesh, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def _rows(self, batch: Batch, token_budget: int, padded: bool) -> list[list[int]]:
        """Of each micro-batch of this rank."""
        acting = _acting(batch)
        lengths = [batch.lengths[row] for row in acting]
        planned = plan(lengths, self.size, token_budget, padded=padded)[self.rank]
        return [[acting[i] for i in members] for members in planned]


def _part(tensor: Tensor, like: DTensor | None) -> Tensor:
    """This rank's part of a tensor that is whole; what is of another model, `load_state_dict` tells."""
    if like is None or isinstance(tensor, DTensor) or like.shape != tensor.shape:
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


def _acting(batch: Batch) -> list[int]:
    """The sequences in which something was sampled: of the others there is nothing to compute."""
    return [row for row, count in enumerate(batch.action_lengths) if count]
