"""The safetensors files of a folder: one, or several with an index; whole, or a complaint that says which."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    """Every file that the weights are in; all of them are there."""
    index = folder / INDEX
    if index.is_file():
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not named:
            raise UserError(f"{index} has no weight_map that tells which file each tensor is in")
        names = sorted(set(named.values()))
    else:
        names = [SINGLE]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(f"{folder} is not a whole model folder: {missing[0]} is missing{others}")
    return [folder / name for name in names]


def parameters(folder: Path) -> int:
    """How many numbers there are in all, read from the headers."""
    count = 0
    for path in files(folder):
        check(path)
        with _readable(path), safe_open(path, framework="pt") as opened:
            count += sum(math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
    return count


def check(path: Path) -> None:
    """A UserError for a file that is missing, cut short or not one of safetensors; reads its header alone."""
    if not path.is_file():
        raise UserError(f"{path.parent} is not whole: {path.name} is missing")
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise UserError(f"{path} is a pointer of Git LFS, not the weights: run `git lfs pull` there")
    with _readable(path), safe_open(path, framework="pt") as opened:
        opened.keys()


def read_file(path: Path) -> dict[str, Tensor]:
    check(path)
    with _readable(path):
        return load_file(path)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} cannot be read as safetensors: {error}; get it again") from None
