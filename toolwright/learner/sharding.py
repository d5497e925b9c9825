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
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from toolwright.batch import Batch
from toolwright.config.places import RankLayout
from toolwright.learner.minibatches import plan
from toolwright.learner.ranks import MicroBatch, Ranks, learned
from toolwright.models import parallel
from toolwright.models.decoder import Decoder
from toolwright.models.parallel import Cut, SequenceGroup, cuts
from toolwright.models.tensor_group import TensorGroup


class RankGroup(Ranks):
    """This process as one of several. `join` makes it; `leave` ends it.

    Neighbours hold parts of the same matrices (`tensor`); then come those that share a pass's tokens
    (`sequence`). Parameters are sharded over all that hold the same part of a matrix."""

    def __init__(self, layout: RankLayout, *, device: torch.device, offload: bool = False) -> None:
        self.layout, self.device, self.offload = layout, device, offload
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        data, sequence, tensor = layout.data, layout.sequence, layout.tensor
        self.world = self.mesh = init_device_mesh(device.type, (self.size,))
        self.sequence: SequenceGroup | None = None
        self.tensor: TensorGroup | None = None
        if tensor > 1:
            grid = init_device_mesh(
                device.type, (data * sequence, tensor), mesh_dim_names=("shard", "tensor")
            )
            self.mesh, self.tensor = grid["shard"], TensorGroup(grid.get_group("tensor"))
        if sequence > 1:
            cube = init_device_mesh(
                device.type, (data, sequence, tensor), mesh_dim_names=("data", "sequence", "tensor")
            )
            self.sequence = SequenceGroup(cube.get_group("sequence"))
        # Of the ranks that compute a micro-batch together, which all know the same of it, one tells.
        self.share, place = divmod(self.rank, sequence * tensor)
        self.tells = place == 0
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
        layout: RankLayout | None = None,
    ) -> RankGroup:
        """Returns once all `size` ranks are there. `address` and `port` are rank 0's, on which it listens.
        `layout`: how they divide the work; None: each has sequences of its own.
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
        return cls(layout or RankLayout(data=size), device=device, offload=offload)

    def leave(self) -> None:
        dist.destroy_process_group()

    def shard(self, module: nn.Module, body: Decoder, *, dtype: torch.dtype) -> None:
        if self.tensor is not None:
            parallel.split(body, self.tensor)
        if self.sequence is not None:
            self.sequence.divide(body)
        # An adapter is added to the base before they are rounded together.
        low = dtype if dtype != torch.float32 and body.adapter is None else None
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
        return self.total(whole)  # nought from all ranks but those that computed it

    def sums(self, values: Mapping[str, float]) -> dict[str, float]:
        total = self.total(torch.tensor(list(values.values()), dtype=torch.float64))
        return dict(zip(values, total.tolist(), strict=True))

    def total(self, values: Tensor) -> Tensor:
        if not self.tells:
            values.zero_()
        dist.all_reduce(values)
        return values

    def highest(self, value: float) -> float:
        found = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def norm(self, module: nn.Module, gradients: Mapping[str, Tensor]) -> Tensor:
        if self.tensor is None:
            return _whole(super().norm(module, gradients))
        cut = cuts(module)
        apart = super().norm(module, {name: g for name, g in gradients.items() if name in cut})
        alike = super().norm(module, {name: g for name, g in gradients.items() if name not in cut})
        # Each rank has a part of the one, and all have the whole of the other.
        total = _whole(apart).double().square() + _whole(alike).double().square() / self.tensor.size
        total = total.to(self.device)
        dist.all_reduce(total, group=self.tensor.group)
        return total.sqrt().float()

    def weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Gather tensor by tensor, so that only the first rank ever holds more than one whole."""
        found: dict[int, Tensor] = {}  # tied weights are gathered once, and stay one tensor
        whole: dict[str, Tensor] = {}
        expected, cut = learned(module), cuts(module)
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name not in expected:
                continue
            if id(tensor) not in found:
                full = self._full(tensor.detach(), cut.get(name))
                found[id(tensor)] = full.cpu() if self.rank == 0 else torch.empty(0)
            whole[name] = found[id(tensor)]
        return whole if self.rank == 0 else {}

    def saved(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state by rows of the whole matrices, however the ranks divide them."""
        if self.tensor is None:
            return dict(tensors)
        cut = cuts(module)
        return {name: self._by_rows(self._full(tensor, cut.get(name))) for name, tensor in tensors.items()}

    def held(self, module: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, DTensor)}
        cut = cuts(module)
        return {name: self._part(tensor, like.get(name), cut.get(name)) for name, tensor in tensors.items()}

    def blank(self, size: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Room in main memory for this rank's part of a tensor, cut as FSDP cuts parameters: by rows."""
        if not size:
            return torch.empty((), dtype=dtype)
        rows = self._own_rows(size[0])
        held = torch.empty(rows.stop - rows.start, *size[1:], dtype=dtype)
        whole = torch.empty(*size, dtype=dtype, device="meta")
        return DTensor.from_local(
            held, self.world, [Shard(0)], run_check=False, shape=whole.shape, stride=whole.stride()
        )

    def _own_rows(self, size: int) -> slice:
        rows = -(-size // self.size)
        start = min(self.rank * rows, size)
        return slice(start, min(start + rows, size))

    def _by_rows(self, whole: Tensor) -> Tensor:
        found = self.blank(whole.shape, whole.dtype)
        if isinstance(found, DTensor):
            found.to_local().copy_(whole[self._own_rows(len(whole))])
            return found
        return found.copy_(whole)

    def _full(self, tensor: Tensor, cut: Cut | None) -> Tensor:
        """The whole of a parameter, from all ranks' parts of it."""
        part = _whole(tensor)
        return part if cut is None or self.tensor is None or not part.dim() else cut.whole(part, self.tensor)

    def _part(self, tensor: Tensor, like: DTensor | None, cut: Cut | None) -> Tensor:
        """This rank's part of a tensor; what is of another model, `load_state_dict` tells."""
        fits = isinstance(tensor, DTensor) and self.tensor is None
        if like is None or fits or not tensor.dim():
            return tensor
        whole = _whole(tensor)
        if cut is not None and whole.dim() > cut.dim and whole.shape[cut.dim] == cut.size:
            whole = cut.part(whole)
        if like.shape != whole.shape:
            return whole
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)

    def _rows(self, batch: Batch, token_budget: int, padded: bool) -> list[list[int]]:
        """The rows of each micro-batch of this rank."""
        acting = _acting(batch)
        lengths = [batch.lengths[row] for row in acting]
        together = token_budget * self.layout.sequence  # a pass has so many tokens on each of them
        planned = plan(lengths, self.layout.data, together, padded=padded)[self.share]
        return [[acting[i] for i in members] for members in planned]


def _whole(tensor: Tensor) -> Tensor:
    """Gather a sharded tensor; return any other as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _acting(batch: Batch) -> list[int]:
    """The sequences with sampled tokens: the others have nothing to compute."""
    return [row for row, count in enumerate(batch.action_lengths) if count]
