"""Tensors for sending: trees of them as arrays, batches, and weights as one flat array with a checksum."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolwright.batch import Batch
from toolwright.config.keys import mapped
from toolwright.failures import InfrastructureFailure
from toolwright.record import Array

CHECKED_AT_ONCE = 1 << 22  # numbers; bounds the memory that a checksum takes


@dataclass(frozen=True)
class PackedTensor:
    """A tensor as an array of its bytes, which Ray sends and receives without a copy."""

    array: Array
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> PackedTensor:
        return cls(_bytes(tensor), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    def tensor(self) -> Tensor:
        """A view of the received bytes: to be read, not written to."""
        if not len(self.array):
            return torch.empty(self.shape, dtype=getattr(torch, self.dtype))
        return _from_bytes(self.array).view(getattr(torch, self.dtype)).reshape(self.shape)


@dataclass(frozen=True)
class PackedBatch:
    fields: dict[str, Any]


@dataclass(frozen=True)
class PublishedWeights:
    """Published weights: every tensor of a model end to end, in the order of its state."""

    version: int
    checksum: int
    flat: Array  # [bytes] uint8


def packed(tree: Any) -> Any:
    """A batch, or a tree of dicts, lists and plain values, with its tensors packed."""
    if isinstance(tree, Batch):
        return PackedBatch(packed({field.name: getattr(tree, field.name) for field in fields(tree)}))
    return mapped(tree, lambda value: PackedTensor.of(value) if isinstance(value, Tensor) else value)


def unpacked(tree: Any) -> Any:
    if isinstance(tree, PackedBatch):
        return Batch(**unpacked(tree.fields))
    return mapped(tree, lambda value: value.tensor() if isinstance(value, PackedTensor) else value)


def publication(state: Mapping[str, Tensor], version: int) -> PublishedWeights:
    tensors = list(_distinct(state))
    flat = np.concatenate([_bytes(tensor) for tensor in tensors])
    return PublishedWeights(version, checksum(tensors), flat)


@torch.no_grad()
def load(state: Mapping[str, Tensor], weights: PublishedWeights) -> int:
    """Copy published weights into these tensors. Returns the checksum of their new content."""
    tensors = list(_distinct(state))
    expected = sum(tensor.nbytes for tensor in tensors)
    if len(weights.flat) != expected:
        raise InfrastructureFailure(
            f"weights of version {weights.version} have {len(weights.flat):,} bytes, this model {expected:,}"
        )
    start, flat = 0, _from_bytes(weights.flat)
    for tensor in tensors:
        part = flat[start : start + tensor.nbytes]
        if start % tensor.element_size():  # a view must be aligned; tensors of other types came before
            part = part.clone()
        tensor.copy_(part.view(tensor.dtype).reshape(tensor.shape))
        start += tensor.nbytes
    return checksum(tensors)


@torch.no_grad()
def checksum(tensors: Iterable[Tensor]) -> int:
    """Compute Σ place · bits. It is exact in integers, so it is the same on every device, and it notices
    values that changed or moved."""
    total = 0
    for number, tensor in enumerate(tensors, start=1):
        bits = tensor.detach().reshape(-1).view(torch.uint8 if tensor.nbytes % 4 else torch.int32)
        for start in range(0, len(bits), CHECKED_AT_ONCE):
            part = bits[start : start + CHECKED_AT_ONCE].long()
            place = torch.arange(start + 1, start + 1 + len(part), device=part.device) % 65521
            total += number * int((part * (place + 1)).sum())
    return total % (1 << 63)


def _distinct(state: Mapping[str, Tensor]) -> Iterable[Tensor]:
    """Yield each tensor once, also if weights are tied."""
    seen = set()
    for tensor in state.values():
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            yield tensor


def _bytes(tensor: Tensor) -> Array:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def _from_bytes(array: Array) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # received memory is read-only, and only read
        return torch.from_numpy(array)
