"""Weights for an engine in another process: one file in memory, or handles of GPU memory."""

from __future__ import annotations

import base64
import json
import pickle
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from toolwright.failures import InfrastructureFailure
from toolwright.models import huggingface
from toolwright.models.decoder import Decoder

SHARED_MEMORY = Path("/dev/shm")
# Of integers as wide as a weight, so that a sum over them is exact.
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SUMMED_AT_ONCE = 1 << 22  # numbers; bounds the memory that a sum takes


def named_weights(decoder: Decoder, dtype: torch.dtype) -> dict[str, Tensor]:
    """The decoder's weights under the hub's names, as an engine of this precision keeps them; an adapter is
    added to what it adapts."""
    found = huggingface.hub_weights(decoder)
    return {name: tensor.detach().to(dtype).contiguous() for name, tensor in found.items()}


class WeightDelivery:
    """A publication on its way: `note` tells a process where to find it, until this is closed."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = dict(weights)  # kept: a handle is good only while its memory is
        self.folder: Path | None = None
        device = next(iter(self.weights.values())).device
        if device.type == "cuda":
            owner = str(torch.cuda.get_device_properties(device).uuid)
            self.note = json.dumps({"handles": _handles(self.weights), "gpu": owner})
        else:
            self.note = json.dumps({"file": str(self._written())})

    def _written(self) -> Path:
        from safetensors.torch import save_file

        near = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None
        size = sum(tensor.nbytes for tensor in self.weights.values())
        if near and shutil.disk_usage(near).free < 2 * size:
            near = None  # a container's shared memory may be too small; a disk is slower, and large enough
        self.folder = Path(tempfile.mkdtemp(prefix="toolwright-weights-", dir=near))
        try:
            save_file(self.weights, self.folder / "weights.safetensors")
        except BaseException:  # a disk that is full must not stay so
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        return self.folder / "weights.safetensors"

    def __enter__(self) -> WeightDelivery:
        return self

    def __exit__(self, *error: object) -> None:
        self.weights.clear()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def received(note: str) -> dict[str, Tensor]:
    """The weights that a note describes, in the process that received the note."""
    where = json.loads(note)
    if "handles" in where:
        handles, device = pickle.loads(base64.b64decode(where["handles"])), _numbered(where["gpu"])
        return {name: _opened(build, arguments, device) for name, (build, arguments) in handles.items()}
    from safetensors.torch import load_file

    return load_file(where["file"])


def _handles(weights: Mapping[str, Tensor]) -> str:
    from torch.multiprocessing.reductions import reduce_tensor

    return base64.b64encode(pickle.dumps({n: reduce_tensor(t) for n, t in weights.items()})).decode()


def _opened(build: Any, arguments: tuple[Any, ...], device: int) -> Tensor:
    """A handle tells its GPU by the number that the sender has for it, in the seventh place."""
    return build(*arguments[:6], device, *arguments[7:])


def _numbered(gpu: str) -> int:
    """The index of a GPU among those that this process sees."""
    for number in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(number).uuid) == gpu:
            return number
    raise InfrastructureFailure(f"weights lie on GPU {gpu}, which the engine's process does not use")


@torch.no_grad()
def checksum(weights: Mapping[str, Tensor]) -> int:
    """Σ place · bits, exact in integers: notices what changed, moved or is missing."""
    total = 0
    for number, (_, tensor) in enumerate(sorted(weights.items()), start=1):
        for start, part in _bits(tensor):
            place = torch.arange(start + 1, start + 1 + len(part), device=part.device) % 65521
            total += number * int((part * (place + 1)).sum())
    return total % (1 << 62)


@torch.no_grad()
def bit_sum(tensor: Tensor) -> int:
    """Σ bits, whatever the order: that of tensors laid end to end is the sum of theirs."""
    return sum(int(part.sum()) for _, part in _bits(tensor))


def _bits(tensor: Tensor) -> Any:
    flat = tensor.detach().contiguous().reshape(-1).view(INTEGERS[tensor.element_size()])
    for start in range(0, len(flat), SUMMED_AT_ONCE):
        yield start, flat[start : start + SUMMED_AT_ONCE].long()


def compare(who: str, version: int, *, sent: int, answers: list[dict[str, Any]]) -> None:
    """Check that every worker received, and holds, the weights that were sent."""
    for rank, answer in enumerate(answers):
        found, differing = int(answer["checksum"]), list(answer["differing"])
        if found != sent:
            raise InfrastructureFailure(
                f"weights of version {version} arrived damaged in worker {rank} of {who}: their checksum is "
                f"{found:x}, the policy's {sent:x}"
            )
        if differing:
            raise InfrastructureFailure(
                f"weights of version {version} arrived in worker {rank} of {who}, but the worker still "
                f"computes with other values: {', '.join(differing[:3])}"
            )
