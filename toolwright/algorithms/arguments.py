"""Arguments of a registered function, checked by name before any arithmetic."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from toolwright.failures import UserError, nearest
from toolwright.registry import Entry


def check_names(kind: str, entry: Entry[Any], given: Mapping[str, Any]) -> None:
    """Every name given is known, and every name without a default is given."""
    parameters = entry.parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name in given:
        if name not in parameters and not open_ended:
            raise UserError(f"{kind} {entry.name!r} takes no {name!r}; {nearest(name, parameters)}")
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    missing = [name for name in required if given.get(name) is None]
    if missing:
        raise UserError(f"{kind} {entry.name!r} needs {', '.join(missing)}, which was not given")


def check_pair(kind: str, found: object, types: tuple[type, type], expected: str) -> None:
    """What a user's function returned is the two things that it has to return."""
    two = isinstance(found, tuple | list) and len(found) == 2
    if not two or not all(map(isinstance, found, types)):  # type: ignore[call-overload]
        raise UserError(f"{kind} must return {expected}; it returned a {type(found).__name__}")


def check_shape(kind: str, name: str, value: Tensor, expected: Sequence[int]) -> None:
    if tuple(value.shape) != tuple(expected):
        raise UserError(f"{kind}: {name} has shape {list(value.shape)}, expected {list(expected)}")


def check_rows(kind: str, name: str, value: Sequence[Any], rows: int) -> None:
    if len(value) != rows:
        raise UserError(f"{kind}: {name} has {len(value)} entries, expected one for each of {rows} rows")


def check_matrix(kind: str, name: str, value: Tensor) -> None:
    if value.ndim != 2 or not value.is_floating_point():
        raise UserError(
            f"{kind}: {name} must be floating point, [trajectories, tokens]; "
            f"it is {value.dtype} of shape {list(value.shape)}"
        )


def working_type(value: Tensor) -> torch.dtype:
    """The type arithmetic is done in: half precision is too coarse for sums of thousands of tokens."""
    return torch.promote_types(value.dtype, torch.float32)


def keys(values: Any) -> list[Hashable]:
    """One plain hashable a row, whether a list, an array or a tensor was given."""
    return list(values.tolist() if hasattr(values, "tolist") else values)
