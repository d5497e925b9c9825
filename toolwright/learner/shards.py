"""Reads the tensors that several ranks wrote into one checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def whole(shards: Path) -> dict[str, Any]:
    """Read a checkpoint with every tensor whole, for a process without ranks."""
    return read(shards, lambda size, dtype: torch.empty(size, dtype=dtype), alone=True)


def read(
    shards: Path, blank: Callable[[torch.Size, torch.dtype], Tensor], *, alone: bool = False
) -> dict[str, Any]:
    """The tree of a checkpoint; `blank` makes room for a tensor, or for a part of it."""
    reader = dcp.FileSystemReader(shards)
    metadata = reader.read_metadata()
    flat: dict[str, Any] = {
        name: blank(found.size, found.properties.dtype) if isinstance(found, TensorStorageMetadata) else None
        for name, found in metadata.state_dict_metadata.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that there are no ranks is meant
        dcp.load(flat, storage_reader=reader, no_dist=alone)
    tree: dict[str, Any] = {}
    for name, path in metadata.planner_data.items():
        place = tree
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = flat[name]
    return tree
