"""The safetensors files of a folder: one, or several with an index; whole, or a complaint that says which."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from toolwright.failures import UserError
from toolwright.models.folder import read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs"


def read_weights(folder: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in files(folder):
        weights.update(read_file(path))
    return weights


def files(folder: Path) -> list[Path]:
    """Every file that the weights are in; all of them are there. Where there is one file as well as several,
    the one counts, as it does for `transformers`."""
    index = folder / INDEX
    if index.is_file() and not (folder / SINGLE).is_file():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not named or not all(isinstance(n, str) for n in named.values()):
            raise UserError(f"{index} has no weight_map, which says in which file each tensor is")
        names = sorted(set(named.values()))
    else:
        names = [SINGLE]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = f", and {len(missing) - 1} more" if len(missing) > 1 else _instead(folder)
        raise UserError(f"{folder} is not a complete model folder: {missing[0]} is missing{others}")
    return [folder / name for name in names]


def _instead(folder: Path) -> str:
    """A message about what a folder without safetensors has instead, and what to do about it."""
    if any(folder.glob("model-*-of-*.safetensors")) and not (folder / INDEX).is_file():
        return f", and so is {INDEX}, which lists the tensors of each file"
    for file in [*sorted(folder.glob("pytorch_model*.bin"))[:1], *sorted(folder.glob("*.gguf"))[:1]]:
        source = folder if file.suffix == ".bin" else file
        return f"; it has {file.name}: `toolwright model convert {source} --out FOLDER` converts it"
    return ""


def parameters(folder: Path) -> int:
    """The number of parameters, read from the headers."""
    return sum(count(path) for path in files(folder))


def count(path: Path) -> int:
    """The number of parameters in one file."""
    return sum(math.prod(one["shape"]) for one in header(path).values())


def in_bfloat16(folder: Path) -> bool:
    """True if every matrix is stored in bfloat16."""
    tensors = [one for path in files(folder) for one in header(path).values()]
    return all(one.get("dtype") == "BF16" for one in tensors if len(one["shape"]) > 1)


def header(path: Path) -> dict[str, dict[str, Any]]:
    """`dtype`, `shape` and `data_offsets` of each tensor, without mapping the file, which may be larger than
    memory. A UserError for one that is missing, cut short, or not of safetensors."""
    if not path.is_file():
        raise UserError(f"{path.parent} is incomplete: {path.name} is missing")
    with path.open("rb") as file:
        start = file.read(max(8, len(POINTER)))
        if start.startswith(POINTER):
            raise UserError(f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` there")
        length, size = int.from_bytes(start[:8], "little"), path.stat().st_size
        if len(start) < 8 or 8 + length > size:
            raise _unreadable(path, "it is cut short in its header, or is another kind of file")
        file.seek(8)
        try:
            found: dict[str, dict[str, Any]] = json.loads(file.read(length))
            found.pop("__metadata__", None)
            end = max((one["data_offsets"][1] for one in found.values()), default=0)
            sum(math.prod(one["shape"]) for one in found.values())
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            raise _unreadable(path, "its header is damaged") from None
    if 8 + length + end != size:
        raise _unreadable(path, f"it has {size:,} bytes, but its header says {8 + length + end:,}")
    return found


def read_file(path: Path) -> dict[str, Tensor]:
    header(path)
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from None


def copy_permissions(folder: Path, like: str) -> None:
    """Give weights, which are written for their owner only, the permissions of the file `like` beside
    them."""
    for path in folder.glob("*.safetensors"):
        shutil.copymode(folder / like, path)


def alike(one: Path, other: Path) -> bool:
    """True if two folders hold the same weights, judged by how each tensor begins; in another precision, by
    and large. A tensor that only one of them has, a tied one say, tells nothing."""
    first, second = _beginnings(one), _beginnings(other)
    shared = first.keys() & second.keys()
    return bool(shared) and all(_equal(first[name], second[name]) for name in shared)


def _beginnings(folder: Path) -> dict[str, Tensor]:
    """The first row of each matrix; vectors whole."""
    found: dict[str, Tensor] = {}
    for path in files(folder):
        several = {name: len(one["shape"]) > 1 for name, one in header(path).items()}
        with safe_open(path, "pt") as file:
            for name, rows in several.items():
                found[name] = file.get_slice(name)[:1] if rows else file.get_tensor(name)
    return found


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype == other.dtype or one.shape != other.shape:
        return torch.equal(one, other)
    return torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-6)


def check_finite(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise a UserError for damage that no header shows: a sum is no number as soon as one of its terms is
    none."""
    for name, tensor in tensors:
        if not torch.isfinite(tensor.detach().sum(dtype=torch.float32)):
            raise UserError(
                f"{folder} is damaged: {name} has numbers that are not finite; download it again, or use an "
                "earlier checkpoint"
            )


def _unreadable(path: Path, reason: object) -> UserError:
    return UserError(f"{path} cannot be read as safetensors: {reason}; download it again")
