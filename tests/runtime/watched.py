"""Roles that refuse whatever is not data: every call's arguments and results are walked, in every process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from toolwright.runtime import wire
from toolwright.runtime.host import Rank
from toolwright.trainer.role_builder import build as build_roles
from toolwright.trainer.role_config import RemoteRole, RoleConfig

PLAIN = (str, bytes, int, float, bool, type(None))
# By name: an actor that needs no torch is not to import it for those that need it.
NOUNS = {
    "toolwright.agents.rollout.AttemptRequest",
    "toolwright.runtime.host.Rank",
    "toolwright.runtime.tensors.PackedBatch",
    "toolwright.runtime.tensors.PackedTensor",
    "toolwright.runtime.tensors.PublishedWeights",
    "toolwright.runtime.wire.TrajectoryRows",
    "toolwright.trainer.role_config.RoleConfig",
    "toolwright.trajectory.Failure",
    "toolwright.trajectory.Task",
}


def check(value: Any, where: str) -> None:
    """Configuration, trajectory, tensor or metric, all the way down."""
    if isinstance(value, PLAIN):
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            raise TypeError(f"{where}: an array of objects crossed")
    elif isinstance(value, pa.Table):
        return
    elif isinstance(value, BaseModel):
        check(value.model_dump(), where)
    elif _name(value) in NOUNS:
        for name, part in vars(value).items():
            check(part, f"{where}.{name}")
    elif isinstance(value, Mapping):
        for key, part in value.items():
            check(key, f"{where} key")
            check(part, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            check(part, f"{where}[{place}]")
    else:
        raise TypeError(f"{where}: a {_name(value)} crossed")


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"


def walked(pack: Callable[[Any], Any], where: str) -> Callable[[Any], Any]:
    """What leaves this process, after it is packed."""

    def checked(value: Any) -> Any:
        packed = pack(value)
        check(packed, where)
        return packed

    return checked


def unwalked(unpack: Callable[[Any], Any], where: str) -> Callable[[Any], Any]:
    """What arrives in this process, before it is unpacked."""

    def checked(packed: Any) -> Any:
        check(packed, where)
        return unpack(packed)

    return checked


def build(
    roles: dict[str, Any], names: Sequence[str], role_config: RoleConfig, remote_role: RemoteRole, rank: Rank
) -> None:
    """The roles as they are; every call that crosses is walked in this process, on its way out and in."""
    check([role_config, rank], "role config")
    own = "+".join(names)
    wire.encode = walked(wire.encode, f"from {own}")
    wire.decode = unwalked(wire.decode, f"to {own}")
    wire.encode_arguments = walked(wire.encode_arguments, f"arguments from {own}")
    wire.decode_arguments = unwalked(wire.decode_arguments, f"arguments to {own}")
    build_roles(roles, names, role_config, remote_role, rank)
